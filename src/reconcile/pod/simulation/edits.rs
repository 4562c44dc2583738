//! No sequence of this agent's requests and another client's edits changes an amount that only the other client has set.

use super::*;

/// One amount of a container's resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Field {
    container: usize,
    resource: Resource,
    is_limit: bool,
}

impl Field {
    fn get(self, spec: &PodAmounts) -> Option<u64> {
        spec.containers[self.container].resources.of(self.resource)[usize::from(self.is_limit)]
    }

    fn set(self, spec: &mut PodAmounts, amount: u64) {
        let Requirements { requests, limits } = &mut spec.containers[self.container].resources;
        let list = if self.is_limit { limits } else { requests };
        list.set(self.resource, Some(amount));
    }

    /// The amount of the edit of this number: a value that this agent never sets.
    const fn amount(self, number: u64) -> u64 {
        match (self.resource, self.is_limit) {
            (Resource::Cpu, false) => 50 + number % 50,
            (Resource::Cpu, true) => 300 + number,
            (Resource::Memory, false) => 50 * MIB + number * 4096,
            (Resource::Memory, true) => 400 * MIB + number * 4096,
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        (0..8).map(|number| Self {
            container: number / 4,
            resource: Resource::ALL[number / 2 % 2],
            is_limit: number % 2 == 1,
        })
    }
}

impl World {
    /// Another client sets an amount, which nobody has set before: a request without an answer may put an earlier one back.
    pub(super) fn edit(&mut self, field: Field) {
        self.edits += 1;
        let amount = field.amount(self.edits);
        let mut spec = self.server.requirements();
        field.set(&mut spec, amount);
        self.server = changed(&self.server, &spec);
        self.theirs.insert(field, amount);
    }

    /// The API server carries out a request of this agent.
    pub(super) fn patch_server(&mut self, changes: &[Step]) {
        let mut spec = self.server.requirements();
        for step in changes {
            let name = step.target.container().unwrap_or_default();
            let container = spec.containers.iter().position(|named| named.name == name).unwrap();
            let Change::Resize { from, to } = &step.change else {
                panic!("{step}")
            };
            let to = Requirements::choose([from, to], |[from, to]| to.filter(|_| from != to));
            let before = spec.clone();
            let resources = &mut spec.containers[container].resources;
            *resources = to.or(*resources);
            for field in Field::all().filter(|field| field.get(&before) != field.get(&spec)) {
                let theirs = self.theirs.remove(&field);
                let is_overwritten = theirs == field.get(&before) && !self.is_set_by_hand(field);
                self.overwritten.extend(is_overwritten.then_some(field));
            }
        }
        self.server = changed(&self.server, &spec);
    }

    /// Whether an override or a temporary limit holds the amount.
    fn is_set_by_hand(&self, field: Field) -> bool {
        let desired = &self.state.desired;
        let name = &self.server.spec.containers[field.container].name;
        let limited = desired.temporary.iter().any(|limit| limit.is_of(name, field.resource));
        limited || field.container == 0 && field.resource == Resource::Memory && desired.overridden.is_some()
    }

    /// A new decision about the memory of containers: it may change what another client has set and this agent knows of.
    pub(super) fn is_decided_anew(&mut self, happening: &Happening) {
        let containers: &[usize] = match happening {
            Happening::Recommends { .. } => &[0, 1],
            Happening::Sets { .. } => &[0],
            Happening::Grows { container, .. } => &[*container],
            _ => return,
        };
        let (view, server) = (self.state.pod.requirements(), self.server.requirements());
        let decided = |field: &Field| field.resource == Resource::Memory && containers.contains(&field.container);
        self.theirs
            .retain(|field, _| !decided(field) || field.get(&view) != field.get(&server));
    }
}

fn theirs() -> impl Strategy<Value = Happening> {
    let fields: Vec<_> = Field::all().collect();
    let edits = (proptest::sample::select(fields), any::<bool>());
    edits.prop_map(|(field, amid_pass)| Happening::Edits { field, amid_pass })
}

fn happening() -> impl Strategy<Value = Happening> {
    let container = || 0_usize..2;
    let overtaking = (container(), 300_u64..310, any::<bool>(), any::<bool>(), any::<bool>());
    prop_oneof![
        4 => theirs(),
        2 => [60_u64..70, 60..70].prop_map(|mib| Happening::Recommends { mib }),
        1 => (200_u64..204).prop_map(|mib| Happening::Sets { mib }),
        1 => Just(Happening::Releases),
        2 => (container(), 300_u64..310).prop_map(|(container, mib)| Happening::Grows { container, mib }),
        2 => container().prop_map(|container| Happening::IsQuiet { container }),
        2 => Just(Happening::WatchBrings),
        1 => Just(Happening::MayLower),
        1 => Just(Happening::AgentIsKilled),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(carries_out, silent)| Happening::Fails { carries_out, silent }),
        2 => overtaking.prop_map(|(container, mib, carries_out, silent, killed)| Happening::Overtakes(Overtaking {
            container, mib, carries_out, silent, killed,
        })),
    ]
}

fn beside_a_late_watch() -> impl Strategy<Value = Happening> {
    let limits: Vec<_> = Field::all()
        .filter(|field| field.is_limit && field.resource == Resource::Memory)
        .collect();
    let edits = proptest::sample::select(limits);
    prop_oneof![
        4 => edits.prop_map(|field| Happening::Edits { field, amid_pass: false }),
        4 => Just(Happening::KubeletSettles),
        3 => Just(Happening::WatchBrings),
        2 => [60_u64..70, 60..70].prop_map(|mib| Happening::Recommends { mib }),
        1 => (200_u64..204).prop_map(|mib| Happening::Sets { mib }),
        2 => Just(Happening::Releases),
        1 => Just(Happening::MayLower),
        1 => Just(Happening::AgentIsKilled),
    ]
}

proptest! {
    #[test]
    fn no_request_changes_what_only_another_client_set(happenings in vec(happening(), 0..40)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen_beside(happening);
            prop_assert_eq!(&world.overwritten, &[], "{:?}", world.state);
        }
        world.calm();
        world.happen(&Happening::Releases);
        world.recover_and_lower();
        prop_assert_eq!(&world.overwritten, &[], "{:?}", world.state);
    }
    #[test]
    fn the_kernel_ends_with_the_spec_though_the_watch_is_late(happenings in vec(beside_a_late_watch(), 0..30)) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen_beside(happening);
        }
        world.happen(&Happening::Releases);
        for _ in 0..8 {
            world.happen_beside(&Happening::KubeletSettles);
            world.happen_beside(&Happening::WatchBrings);
            world.happen_beside(&Happening::MayLower);
        }
        let spec = world.server.requirements();
        let status = &world.server.status;
        prop_assert_eq!(status.observed_generation, world.server.metadata.generation, "the agent patches for ever");
        prop_assert_eq!(world.kernel, [0, 1].map(|number| limit_of(&spec, number)), "{:?}", world.state);
    }
}
