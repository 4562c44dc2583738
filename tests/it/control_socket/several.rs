//! Several containers and several pods in one call.

use super::agent::Agent;

#[test]
fn values_follow_their_container() {
    let agent = Agent::start();
    let line = "resize shop/web -c app --cpu-limit 1 --memory-limit 1Gi -c side --cpu-request 50m";
    agent.run(&line.split(' ').collect::<Vec<_>>()).text();
    let resized = agent.script.resized.lock().unwrap();
    let shown: Vec<_> = resized[0]
        .1
        .containers
        .iter()
        .map(|container| {
            let values = container.values.clone().unwrap();
            let (requests, limits) = (values.requests.unwrap(), values.limits.unwrap());
            (container.name.as_str(), requests.cpu, limits.cpu, limits.memory)
        })
        .collect();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        shown,
        [("app", None, text("1"), text("1Gi")), ("side", text("50m"), None, None)]
    );
}

#[test]
fn a_selector_reaches_several_pods() {
    let agent = Agent::start();
    let arguments = [
        "resize",
        "-l",
        "app in (web,db)",
        "-n",
        "shop",
        "-c",
        "app",
        "--cpu-limit",
        "1",
    ];
    let answer = agent.run(&arguments);
    insta::assert_snapshot!(answer.out, @r#"
    POD       CONTAINER  OUTCOME  STEPS  REASON
    shop/web  app        Applied  1
              side       Applied
    shop/db   app        Refused  -      the pod has no container "app"; it has: db
              side       Refused
    "#);
    let error = answer.error(1);
    assert!(error.contains("not as requested: shop/db (1 of 2)"), "{error}");
    {
        let resized = agent.script.resized.lock().unwrap();
        let request = &resized[0].1;
        assert_eq!(
            (
                request.pod.as_str(),
                request.selector.as_str(),
                request.namespace.as_str()
            ),
            ("", "app in (web,db)", "shop")
        );
    }
    let answer = agent.run(&[&arguments[..], &["-o", "json"]].concat());
    assert_eq!(answer.code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    assert_eq!(json["results"][0]["change"]["outcome"], "Applied");
    assert_eq!(
        json["results"][1]["error"],
        "the pod has no container \"app\"; it has: db"
    );
    let answer = agent.run(&["release", "--selector", "app"]);
    assert!(answer.error(1).contains("(1 of 2)"), "{answer:?}");
}

#[test]
fn a_pod_and_a_selector_are_not_both_meant() {
    let agent = Agent::start();
    for arguments in [
        &["resize", "-c", "app", "--cpu-limit", "1"][..],
        &["resize", "shop/web", "-l", "app", "-c", "app", "--cpu-limit", "1"],
        &["resize", "shop/web", "-n", "shop", "-c", "app", "--cpu-limit", "1"],
        &["resize", "-l", "app=web,,", "-c", "app", "--cpu-limit", "1"],
        &["release"],
        &["release", "shop/web", "-l", "app"],
    ] {
        agent.run(arguments).error(2);
    }
    assert!(agent.script.resized.lock().unwrap().is_empty());
}
