//! A container whose memory use rises and falls all the time.

use super::{Amounts, ROOMY, Scene, random, roomy};
use crate::support::churn;

const TRIES: u64 = 100;
/// The container's highest use in MiB.
const MOST: u64 = 120;

#[tokio::test]
async fn no_shrink_kills_under_a_churning_allocator() {
    // As fast as it can: the agent sees each amount several times before it lowers a limit.
    let unthrottled = Amounts {
        cpu: 1000,
        cpu_limit: None,
        ..roomy(ROOMY)
    };
    let mut scene = Scene::of(unthrottled).await;
    let churner = scene.spawn(&churn::peaking(5, MOST));
    let high = MOST << 20;
    let cgroups = scene.node.cgroups();
    // Until then, a limit that is too low for the container is higher than all that it has used.
    let peaked = || cgroups.memory_usage(&scene.app()) >= high;
    scene.agent.wait_for("all memory to be taken", peaked).await;
    let mut random = random();
    let (mut done, mut refused) = (0, 0);
    for _ in 0..TRIES {
        // Three tenths to nineteen twentieths.
        let wanted = ROOMY * random.u64(30..96) / 100;
        let change = scene.resize(wanted).await;
        match change.outcome.as_str() {
            "Applied" => done += 1,
            "Refused" | "RolledBack" => {
                refused += 1;
                assert!(change.reason.contains("not shrinkable now"), "{}", change.reason);
                assert_eq!(scene.limits(), [ROOMY, ROOMY], "{}", change.reason);
            }
            other => panic!("{other}: {change:#?}"),
        }
        assert_eq!(scene.kills(), 0, "{wanted} MiB: {change:#?}");
        let back = scene.resize(ROOMY).await;
        assert!(matches!(back.outcome.as_str(), "Applied" | "Unchanged"), "{back:#?}");
    }
    println!("{done} lowered, {refused} refused");
    assert_eq!((scene.kills(), scene.is_frozen(), scene.markers()), (0, false, 0));
    assert!(done > 0, "nothing was lowered");
    let cgroup = scene.node.cgroups().of_process(churner.cast_signed());
    assert_eq!(cgroup, scene.app(), "the process still runs");
}
