use super::*;
use crate::model::objects::PodId;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

const fn mib(mebibytes: u64) -> Bytes {
    Bytes::new(mebibytes * MIB)
}

const AMPLE: Budget = Budget {
    pod: mib(1 << 20),
    node: mib(1 << 20),
};

fn claimant(pod: &str) -> Guarded {
    claimant_in("test", pod)
}

fn claimant_in(namespace: &str, pod: &str) -> Guarded {
    Guarded {
        pod: PodId {
            uid: format!("{namespace}-{pod}").into(),
            namespace: namespace.to_owned(),
            name: pod.to_owned(),
        },
        container: "app".into(),
    }
}

const fn node(free: u64, claimed: u64) -> Bytes {
    mib(free.saturating_sub(claimed))
}

const fn need(used: u64, least: u64, wanted: u64) -> Need {
    Need {
        at: NOW,
        limit: Bytes::ZERO,
        rate: 0,
        used: mib(used),
        wanted: mib(wanted),
        least: mib(least),
    }
}

impl Budgets {
    /// Grants a container with this limit what it needs.
    fn grant_above(
        &mut self,
        at: Duration,
        claimant: &Guarded,
        limit: Bytes,
        need: &Need,
        ceiling: Bytes,
        free: Bytes,
    ) -> Result<Bytes, Refusal> {
        self.grant(at, claimant, &Need { limit, ..*need }, ceiling, free)
    }
}

const NOW: Duration = Duration::ZERO;

#[test]
fn what_is_needed_is_granted_up_to_the_ceiling() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let web = claimant("web");
    let mut ask = |limit, need: Need| budgets.grant_above(NOW, &web, mib(limit), &need, mib(300), node(10_000, 0));
    assert_eq!(ask(128, need(120, 132, 200)), Ok(mib(200)));
    assert_eq!(ask(200, need(190, 206, 900)), Ok(mib(300)));
    assert_eq!(ask(300, need(295, 309, 900)), Err(Refusal::ceiling(mib(300))));
}

#[test]
fn growth_reaches_the_last_page_of_a_ceiling() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let web = claimant("web");
    // `200M`, as people write it, is no whole number of pages.
    let (ceiling, last) = (Bytes::new(200_000_000), Bytes::new(199_999_488));
    let mut ask = |limit| budgets.grant_above(NOW, &web, limit, &need(189, 196, 900), ceiling, node(10_000, 0));
    assert_eq!(ask(mib(190)), Ok(last));
    assert_eq!(ask(last), Err(Refusal::ceiling(ceiling)));
}

#[test]
fn a_growth_is_a_whole_page_at_least() {
    let grow = |limit: Bytes, need: Need, free: Bytes| {
        let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
        budgets.grant_above(NOW, &claimant("web"), limit, &need, mib(300), free)
    };
    let [limit, least, wanted] = [4096, 4224, 5120].map(Bytes::new);
    let tiny = Need {
        used: limit,
        wanted,
        least,
        ..need(0, 0, 0)
    };
    assert_eq!(grow(limit, tiny, mib(300)), Ok(Bytes::new(8192)));
    // All that the node has ends between two pages.
    let least = Need {
        least: Bytes::new(131 * MIB + 1),
        ..need(120, 131, 200)
    };
    let granted = grow(mib(128), least, Bytes::new(11 * MIB + 5000));
    assert_eq!(granted, Ok(Bytes::new(131 * MIB + 4096)));
}

#[test]
fn a_need_of_half_a_mebibyte_is_named() {
    let half = Need {
        used: mib(1),
        least: Bytes::new(MIB + MIB / 2),
        ..need(0, 0, 2)
    };
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let refused = budgets.grant_above(NOW, &claimant("web"), mib(1), &half, mib(300), Bytes::ZERO);
    let why = refused.unwrap_err().why;
    assert!(why.ends_with("but 1 MiB are needed"), "{why}");
}

#[test]
fn the_last_memory_goes_to_the_first_who_asks() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let (first, second) = (claimant("first"), claimant("second"));
    let ceiling = mib(4096);
    assert_eq!(
        budgets.grant_above(NOW, &first, mib(128), &need(120, 132, 500), ceiling, node(300, 0)),
        Ok(mib(420)),
        "what it uses, and all that is left"
    );
    // Nothing of it is used yet, so the node still readings free.
    let refused = budgets.grant_above(NOW, &second, mib(128), &need(120, 132, 500), ceiling, node(300, 0));
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Node);
    let left = "the node can give 0 MiB to namespace test beyond its reserve and what other pods may still claim, but 12 MiB are needed";
    assert_eq!(refused.why, left);
    budgets.release(&first);
    assert!(
        budgets
            .grant_above(NOW, &second, mib(128), &need(120, 132, 500), ceiling, node(300, 0))
            .is_ok()
    );
}

#[test]
fn what_others_requested_is_theirs() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let refused = budgets.grant_above(
        NOW,
        &claimant("web"),
        mib(128),
        &need(120, 132, 500),
        mib(4096),
        node(300, 295),
    );
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, RefusalKind::Node);
    let left = "the node can give 5 MiB to namespace test beyond its reserve and what other pods may still claim, but 12 MiB are needed";
    assert_eq!(refused.why, left);
}

/// An init container with 400 MiB determines the pod's limit, and the other containers have 256 together.
#[test]
fn a_growth_that_raises_no_pod_is_not_granted() {
    let ask = |pod| {
        let budget = Budget { pod: mib(pod), ..AMPLE };
        let need = need(118, 135, 228).after(mib(144));
        let mut budgets = Budgets::new(budget, PageSize::KIB_4);
        budgets.grant_above(NOW, &claimant("web"), mib(128), &need, mib(4096), node(10_000, 0))
    };
    assert_eq!(ask(1024), Ok(mib(372)));
    assert_eq!(ask(160), Ok(mib(288)));
    assert_eq!(ask(100).unwrap_err().kind, RefusalKind::PodBudget);
}

#[test]
fn a_budget_ends_runaway_growth() {
    let budget = Budget { pod: mib(100), ..AMPLE };
    let mut budgets = Budgets::new(budget, PageSize::KIB_4);
    let web = claimant("web");
    let mut ask = |at, limit| {
        let need = need(limit - 2, limit + 4, limit + 60);
        budgets.grant_above(at, &web, mib(limit), &need, mib(4096), node(10_000, 0))
    };
    assert_eq!(ask(NOW, 128), Ok(mib(188)));
    assert_eq!(ask(NOW, 188), Ok(mib(228)), "what is left of the budget");
    let refused = ask(NOW, 228).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::PodBudget);
    assert!(refused.to_string().contains("raised 2 times, by 100 MiB,"), "{refused}");
    assert_eq!(ask(WINDOW + Duration::from_secs(1), 228), Ok(mib(288)));
}

#[test]
fn many_small_growths_are_too_many() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let web = claimant("web");
    let mut limit = 128;
    let refused = loop {
        let need = need(limit - 2, limit + 1, limit + 1);
        match budgets.grant_above(NOW, &web, mib(limit), &need, mib(1 << 20), node(1 << 20, 0)) {
            Ok(to) => limit = to.get() / MIB,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refused.kind, RefusalKind::PodBudget);
    let growths = format!("raised {POD_GROWTHS} times, by ");
    assert!(refused.why.contains(&growths), "{refused}");
}

#[test]
fn a_growth_that_failed_is_not_counted() {
    let budget = Budget {
        node: mib(1000),
        ..AMPLE
    };
    let mut budgets = Budgets::new(budget, PageSize::KIB_4);
    let web = claimant("web");
    // More often, and by more together, than the node's budget allows.
    for _ in 0..=NODE_GROWTHS {
        let granted = budgets.grant_above(NOW, &web, mib(128), &need(120, 132, 228), mib(4096), node(500, 0));
        assert_eq!(granted, Ok(mib(228)));
        budgets.undo(&web);
        assert!(budgets.given.is_empty() && budgets.promised.is_empty());
    }
}

#[test]
fn a_huge_limit_is_promised_a_second_of_growth() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let granted = |budgets: &mut Budgets| {
        let (claimant, need) = (claimant("web"), need(120, 132, 500));
        budgets.grant_above(NOW, &claimant, mib(128), &need, mib(4096), node(505, 0))
    };
    budgets.promise(claimant_in("hostile", "greedy"), 1 << 40, 5 * MIB);
    assert_eq!(
        granted(&mut budgets),
        Ok(mib(500)),
        "5 MiB are promised to the other one"
    );
    budgets.promise(claimant_in("hostile", "greedy"), 1 << 40, u64::MAX);
    assert_eq!(
        granted(&mut budgets),
        Ok(mib(372)),
        "half of what the node has, although the other one would take all"
    );
}

#[test]
fn a_spent_budget_leaves_others_their_part() {
    let budget = Budget {
        pod: mib(1 << 20),
        node: mib(1000),
    };
    let mut budgets = Budgets::new(budget, PageSize::KIB_4);
    budgets.set(budget, &["hostile", "test"].map(str::to_owned).into());
    let greedy = |pod: u64| claimant_in("hostile", &pod.to_string());
    let grown = (0..1000).filter_map(|pod| {
        let need = need(120, 129, 168);
        budgets
            .grant_above(NOW, &greedy(pod), mib(128), &need, mib(4096), node(1 << 20, 0))
            .ok()
    });
    let grown: u64 = grown.map(|to| to.get() / MIB - 128).sum();
    assert_eq!(grown, 750, "half of the budget is divided in advance");
    let mut honest = |wanted| {
        let need = need(120, 132, wanted);
        budgets.grant_above(NOW, &claimant("web"), mib(128), &need, mib(4096), node(1 << 20, 0))
    };
    assert_eq!(honest(900), Ok(mib(378)));
    let refused = honest(900).unwrap_err();
    assert_eq!(refused.kind, RefusalKind::NodeBudget);
    assert!(
        refused
            .why
            .contains("2 namespaces share 1000 MiB within 60 min (guardNodeBudget)"),
        "{refused}"
    );
}

/// What a container of the hostile namespace does.
#[derive(Debug, Clone)]
enum Hostile {
    Grows { limit: u64, least: u64, more: u64 },
    Takes { unused: u64, rate: u64 },
    FailsToGrow,
}

fn hostile() -> impl Strategy<Value = (u8, Hostile)> {
    let amount = || prop_oneof![0_u64..2000, Just(1 << 20), 0..u64::MAX >> 21];
    let does = prop_oneof![
        (amount(), 1_u64..200, amount()).prop_map(|(limit, least, more)| Hostile::Grows { limit, least, more }),
        (any::<u64>(), any::<u64>()).prop_map(|(unused, rate)| Hostile::Takes { unused, rate }),
        Just(Hostile::FailsToGrow),
    ];
    (any::<u8>(), does)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Whatever one namespace does, the other's container grows as without it, up to its share of the node's memory and budget.
    #[test]
    fn each_namespace_grows_up_to_its_share(
        acts in prop::collection::vec(hostile(), 0..30),
        free in 0_u64..4000, budget in 1_u64..4000, limit in 100_u64..1000, least in 1_u64..50, more in 0_u64..1000,
    ) {
        let budget = Budget { pod: mib(1 << 20), node: mib(budget) };
        let namespaces = ["hostile", "test"].map(str::to_owned).into();
        let account = || {
            let mut budgets = Budgets::new(budget, PageSize::KIB_4);
            budgets.set(budget, &namespaces);
            budgets
        };
        let grow = |budgets: &mut Budgets, wanted: u64| {
            let need = need(limit - 10, limit + least, wanted);
            budgets.grant_above(NOW, &claimant("web"), mib(limit), &need, mib(1 << 20), mib(free))
        };
        let wanted = limit + least + more;
        let mut beside = account();
        for (pod, act) in acts {
            let claimant = claimant_in("hostile", &pod.to_string());
            match act {
                Hostile::Grows { limit, least, more } => {
                    let need = need(limit, limit + least, limit + least + more);
                    // A refusal changes nothing.
                    beside.grant_above(NOW, &claimant, mib(limit), &need, mib(u64::MAX >> 20), mib(free)).ok();
                }
                Hostile::Takes { unused, rate } => beside.promise(claimant, unused, rate),
                Hostile::FailsToGrow => {
                    let need = need(1, 2, 3);
                    if beside.grant_above(NOW, &claimant, mib(1), &need, mib(3), mib(free)).is_ok() {
                        beside.undo(&claimant);
                    }
                }
            }
        }
        // Half of the room, and a half of the half of the budget that is divided in advance, in whole mebibytes.
        let share = (limit - 10 + free / 2).min(limit + budget.node.get() / MIB / 4);
        let alone = grow(&mut account(), wanted.min(share));
        let granted = grow(&mut beside, wanted);
        match alone {
            Ok(alone) if wanted.min(share) >= limit + least => prop_assert!(granted.clone().is_ok_and(|to| to >= alone), "{alone:?} {granted:?}"),
            Ok(_) | Err(_) => {}
        }
    }

    /// Whoever asks in whatever order: all that is promised and not used yet fits into what the node has free beyond
    /// what others claim.
    #[test]
    fn the_node_is_never_promised_away(
        asks in prop::collection::vec((0_usize..4, 1_u64..400, 0_u64..400, 0_u64..2000), 1..40),
        free in 0_u64..3000, claimed in 0_u64..1000, pod in 1_u64..3000, ceiling in 1_u64..3000,
    ) {
        let budget = Budget { pod: mib(pod), node: mib(2 * pod) };
        let mut budgets = Budgets::new(budget, PageSize::KIB_4);
        let mut limits = [128_u64; 4];
        for (who, ahead, short, more) in asks {
            let limit = limits[who];
            let need = need(limit.saturating_sub(short % limit), limit + 1 + ahead / 8, limit + 1 + ahead + more);
            let asked = budgets.grant_above(
                NOW, &claimant(&who.to_string()), mib(limit), &need, mib(ceiling), node(free, claimed),
            );
            if let Ok(to) = asked {
                prop_assert!(to > mib(limit) && to <= mib(ceiling) && to <= need.wanted);
                limits[who] = to.get() / MIB;
            }
        }
        let promised: u64 = budgets.promised.values().sum();
        prop_assert!(promised <= mib(free.saturating_sub(claimed)).get());
        let given: u64 = budgets.given.iter().map(|given| given.bytes).sum();
        prop_assert!(given <= mib(2 * pod).get());
    }
}

#[test]
fn the_nodes_budget_comes_back_after_the_window() {
    let budget = Budget { node: mib(40), ..AMPLE };
    let mut budgets = Budgets::new(budget, PageSize::KIB_4);
    let mut ask = |at| {
        let need = need(120, 132, 148);
        budgets.grant_above(at, &claimant("web"), mib(128), &need, mib(4096), node(10_000, 0))
    };
    let refused = (0..9).find_map(|_| ask(NOW).err()).unwrap();
    assert_eq!(refused.kind, RefusalKind::NodeBudget);
    assert_eq!(ask(WINDOW).unwrap_err().kind, RefusalKind::NodeBudget);
    assert_eq!(ask(WINDOW + Duration::from_millis(1)), Ok(mib(148)));
}

#[test]
fn many_growths_of_all_pods_are_too_many() {
    let mut budgets = Budgets::new(AMPLE, PageSize::KIB_4);
    let mut grow = |at, pod: u64| {
        let (claimant, need) = (claimant(&pod.to_string()), need(120, 129, 129));
        budgets.grant_above(at, &claimant, mib(128), &need, mib(4096), node(1 << 20, 0))
    };
    let refused = (0..=NODE_GROWTHS).find_map(|pod| grow(NOW, pod).err()).unwrap();
    assert_eq!(refused.kind, RefusalKind::NodeBudget);
    let share = "share 600 raised limits within 60 min (guardNodeBudget)";
    assert!(refused.why.contains(share), "{refused}");
    assert!(grow(WINDOW + Duration::from_millis(1), 0).is_ok());
}

#[test]
fn a_refused_amount_uses_up_no_growth() {
    let budget = Budget { node: mib(10), ..AMPLE };
    let mut budgets = Budgets::new(budget, PageSize::KIB_4);
    let mut ask = |wanted| {
        let need = need(120, wanted, wanted);
        budgets.grant_above(NOW, &claimant("web"), mib(128), &need, mib(4096), node(10_000, 0))
    };
    for _ in 0..=NODE_GROWTHS {
        assert_eq!(ask(168).unwrap_err().kind, RefusalKind::NodeBudget);
    }
    assert_eq!(ask(129), Ok(mib(129)));
}
