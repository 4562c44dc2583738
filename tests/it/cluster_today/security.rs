//! What others' rules mean for resizes, and what the agent's own token can do at a real API server.

use http::Method;
use serde_json::{Value, json};

use super::{LARGER, Scene, WEB, nothing_restarted};
use crate::support::amounts::Amounts;
use crate::support::cluster::{Api, NODE, objects};

#[tokio::test]
async fn the_agents_token_resizes_pods_and_is_refused_everything_else() {
    let Some(scene) = Scene::new("cluster_today::security::the_agents_token").await else {
        return;
    };
    let before = scene.runs_app().await;
    scene.make_vpa("Off");
    let api = &scene.today.api;
    // Another test may have granted more.
    api.grant("deploy/base");
    let token = api.deployed_kubeconfig();
    let (core, pod) = (scene.collection("api/v1"), format!("{}/{WEB}", scene.pods()));
    let deployment = scene.collection("apis/apps/v1") + "/deployments/web";
    let label = json!({"metadata": {"labels": {"team": "bank"}}});
    let image = json!({"spec": {"containers": [{"name": "app", "image": "evil"}]}});
    let account = "/api/v1/namespaces/vscaled/serviceaccounts/vscaled/token";
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let rights = "/apis/rbac.authorization.k8s.io/v1";
    let attacks: Vec<(Method, String, Option<&Value>)> = vec![
        (Method::GET, format!("{core}/secrets"), None),
        (Method::GET, "/api/v1/secrets".to_owned(), None),
        (Method::GET, format!("{core}/configmaps"), None),
        (Method::PATCH, pod.clone(), Some(&label)),
        (Method::PATCH, pod.clone(), Some(&image)),
        (Method::PATCH, format!("{pod}/status"), Some(&label)),
        (Method::PATCH, format!("{pod}/ephemeralcontainers"), Some(&image)),
        (Method::DELETE, pod.clone(), None),
        (Method::POST, format!("{pod}/eviction"), Some(&label)),
        (Method::POST, format!("{pod}/exec?command=id"), None),
        (Method::GET, format!("{pod}/exec?command=id"), None),
        (Method::GET, format!("{pod}/log"), None),
        (Method::GET, format!("/api/v1/nodes/{NODE}/proxy/pods"), None),
        (Method::PATCH, format!("/api/v1/nodes/{NODE}"), Some(&label)),
        (Method::PATCH, format!("{}/web", scene.vpas()), Some(&label)),
        (Method::PATCH, deployment.clone(), Some(&label)),
        (Method::PATCH, format!("{deployment}/scale"), Some(&label)),
        (Method::POST, account.to_owned(), Some(&request)),
        (Method::GET, format!("{rights}/clusterroles"), None),
        (
            Method::PATCH,
            format!("{rights}/clusterrolebindings/vscaled"),
            Some(&label),
        ),
        (Method::DELETE, format!("{core}/events"), None),
    ];
    for (method, path, body) in attacks {
        let answer = api.request_as(&token, method.clone(), &path, body);
        let refused = answer.expect_err(&format!("{method} {path} was answered"));
        assert!(refused.contains("forbidden"), "{method} {path}: {refused}");
    }
    let untouched = scene.object(WEB);
    assert_eq!(untouched["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(untouched["spec"], before["spec"]);

    // In a resize, the API server drops or refuses whatever is no amount.
    let resize = format!("{pod}/resize");
    if let Err(refused) = api.request_as(&token, Method::PATCH, &resize, Some(&image)) {
        assert!(refused.contains("Forbidden"), "{refused}");
    }
    assert_eq!(scene.object(WEB)["spec"], before["spec"]);
    let larger = json!({"spec": {"containers": [{"name": "app", "resources": objects::resources(LARGER)}]}});
    api.request_as(&token, Method::PATCH, &resize, Some(&larger)).unwrap();
    let after = scene.is_resized(WEB, "app", &objects::resources(LARGER)).await;
    nothing_restarted(&before, &after);
}

/// An agent without all of its rights. Dropping the value grants them again, because other tests need them.
struct LacksRights<'a>(&'a Api);

impl Drop for LacksRights<'_> {
    fn drop(&mut self) {
        self.0.grant("deploy/base");
    }
}

#[tokio::test]
async fn missing_rules_are_named_and_their_coming_is_followed() {
    let Some(mut scene) = Scene::new("cluster_today::security::rules_that_the_role_lacks").await else {
        return;
    };
    let before = scene.runs_app().await;
    let levels = scene.levels(&before);
    scene.make_vpa("InPlaceOrRecreate");
    let api = &scene.today.api;
    let token = api.deployed_kubeconfig();
    let _lacks = LacksRights(api);
    api.grant_without("deploy/base", &["pods/resize", "replicasets"]);
    let (resize, nothing) = (format!("{}/{WEB}/resize?dryRun=All", scene.pods()), json!({}));
    let is_refused = || {
        let answer = api.request_as(&token, Method::PATCH, &resize, Some(&nothing));
        answer.is_err_and(|refused| refused.contains("forbidden"))
    };
    scene.agent.wait_for("the rights to be gone", is_refused).await;
    scene.agent.start().await;
    scene
        .agent
        .reports(&["lacks the rule", "resources: [replicasets], verbs: [get]"])
        .await;

    api.grant_without("deploy/base", &["pods/resize"]);
    scene.recommend(&[("app", LARGER)]);
    let rule = "{apiGroups: [\"\"], resources: [pods/resize], verbs: [patch]}";
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains(rule)).then_some(())
    };
    scene.agent.until("the other rule to be named", says).await;
    let refused = scene.object(WEB);
    assert_eq!(refused["spec"], before["spec"]);
    assert_eq!(scene.levels(&refused), levels);

    api.grant("deploy/base");
    let after = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn a_namespace_that_became_restricted_is_followed_like_any_other() {
    let Some(mut scene) = Scene::new("cluster_today::security::a_namespace_that_became").await else {
        return;
    };
    let before = scene.follows_app().await;
    let enforce = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let namespace = format!("/api/v1/namespaces/{}", scene.namespace);
    let labelled = scene.today.api.answer(&namespace, &enforce);
    assert_eq!(labelled["metadata"]["name"], json!(scene.namespace));
    // A pod like this one, with the node's network, would not be let in any more.
    let is_refused = || {
        let like = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "like"}, "spec": before["spec"]});
        let admin = scene.today.api.kubeconfig(crate::support::cluster::User::Admin);
        let dry = format!("{}?dryRun=All", scene.pods());
        let answer = scene.today.api.request_as(&admin, Method::POST, &dry, Some(&like));
        answer.is_err_and(|refused| refused.contains("violates PodSecurity"))
    };
    scene.agent.wait_for("the namespace to be restricted", is_refused).await;
    scene.recommend(&[("app", LARGER)]);
    let after = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn a_refusing_admission_policy_is_named_until_gone() {
    let Some(mut scene) = Scene::new("cluster_today::security::an_admission_policy").await else {
        return;
    };
    let before = scene.follows_app().await;
    let levels = scene.levels(&before);
    let name = scene.namespace.clone();
    let group = "admissionregistration.k8s.io/v1";
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/resize"]});
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": name}});
    let object =
        |kind: &str, spec: Value| json!({"apiVersion": group, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let api = &scene.today.api;
    api.apply(&object(
        "ValidatingAdmissionPolicy",
        json!({
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "the bank sleeps"}],
        }),
    ));
    api.apply(&object(
        "ValidatingAdmissionPolicyBinding",
        json!({
            "policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": here},
        }),
    ));
    let resize = format!("{}/{WEB}/resize?dryRun=All", scene.pods());
    let other = json!({"spec": {"containers": [{"name": "app", "resources": objects::resources(LARGER)}]}});
    let enforced = || {
        let answer = scene.today.api.answer(&resize, &other);
        answer["message"]
            .as_str()
            .is_some_and(|text| text.contains("the bank sleeps"))
    };
    scene.agent.wait_for("the policy to be enforced", enforced).await;

    scene.recommend(&[("app", LARGER)]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        (pod.state == "Refused" && pod.detail.contains("the bank sleeps")).then_some(())
    };
    scene.agent.until("the policy to be named", says).await;
    let refused = scene.object(WEB);
    assert_eq!(refused["spec"], before["spec"]);
    assert_eq!(scene.levels(&refused), levels);

    for kind in ["validatingadmissionpolicybindings", "validatingadmissionpolicies"] {
        scene.delete(&format!("/apis/{group}/{kind}"), &name);
    }
    let after = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn a_hanging_webhook_holds_only_its_resizes() {
    let Some(mut scene) = Scene::new("cluster_today::security::an_admission_webhook").await else {
        return;
    };
    let before = scene.follows_app().await;
    let levels = scene.levels(&before);
    let name = scene.namespace.clone();
    let group = "admissionregistration.k8s.io/v1";
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods/resize"]});
    scene.today.api.apply(&json!({
        "apiVersion": group, "kind": "ValidatingWebhookConfiguration", "metadata": {"name": name},
        "webhooks": [{
            "name": "closed.example.com", "rules": [rule], "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "timeoutSeconds": 2,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            // Nobody listens there.
            "clientConfig": {"url": "https://127.0.0.1:9/"},
        }],
    }));
    let resize = format!("{}/{WEB}/resize?dryRun=All", scene.pods());
    let other = json!({"spec": {"containers": [{"name": "app", "resources": objects::resources(LARGER)}]}});
    let called = || {
        let answer = scene.today.api.answer(&resize, &other);
        answer["message"]
            .as_str()
            .is_some_and(|text| text.contains("closed.example.com"))
    };
    scene.agent.wait_for("the webhook to be called", called).await;
    scene.recommend(&[("app", LARGER)]);
    let says = async || {
        let pod = scene.agent.pod(WEB).await?;
        pod.detail.contains("closed.example.com").then_some(())
    };
    scene.agent.until("the webhook to be named", says).await;
    assert_eq!(scene.levels(&scene.object(WEB)), levels);
    // A person's change, which the webhook holds as well, is refused with its name.
    let by_hand = scene.limit_by_hand(WEB, "app", "200Mi").await;
    let change = by_hand.unwrap();
    assert_eq!(change.outcome, "Refused", "{change:#?}");
    assert!(change.reason.contains("closed.example.com"), "{change:#?}");

    scene.delete(&format!("/apis/{group}/validatingwebhookconfigurations"), &name);
    let after = scene.app_reaches(LARGER).await;
    nothing_restarted(&before, &after);
}

#[tokio::test]
async fn amounts_are_moved_into_a_limit_range() {
    let Some(mut scene) = Scene::new("cluster_today::security::amounts_beyond").await else {
        return;
    };
    let before = scene.follows_app().await;
    let limits = json!([{"type": "Container", "max": {"memory": "160Mi"}}]);
    scene.apply("v1", "LimitRange", "l", json!({}), &json!({"spec": {"limits": limits}}));
    let known = async || {
        scene.recommend(&[("app", LARGER)]);
        let pod = scene.object(WEB);
        (pod["spec"] != before["spec"]).then_some(())
    };
    scene.agent.until("the recommendation to be followed", known).await;
    let within = Amounts {
        memory: 80,
        memory_limit: Some(160),
        ..LARGER
    };
    let after = scene.app_reaches(within).await;
    nothing_restarted(&before, &after);
}
