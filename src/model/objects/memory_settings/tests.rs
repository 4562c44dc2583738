use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::objects::Container;

/// What is found, one line each.
fn found(container: Value) -> Vec<String> {
    let container: Container = serde_json::from_value(container).unwrap();
    let lines = container.memory_settings.iter();
    lines
        .map(|setting| format!("{} {} {}", setting.source, setting.option.name(), setting.value))
        .collect()
}

#[test]
fn flags_stand_in_words_and_in_scripts() {
    assert_eq!(
        found(json!({"command": ["java"], "args": ["-Xmx512m", "-Xms256m", "-jar", "app.jar"]})),
        ["args -Xmx 512m", "args -Xms 256m"]
    );
    let scripts = [
        "java -Xmx512m -jar app.jar",
        "exec \"java\" '-Xmx512m' App",
        "cd /app && exec java \\\n  -Xmx512m -jar a.jar 2>&1 | tee log",
        "# java -Xmx4g\njava -Xmx\"512m\" App",
        "su app -c 'java -Xmx512m App'",
        "ulimit -n 10; /usr/bin/java -cp lib -Xmx512m App -Xmx9g",
    ];
    for script in scripts {
        let container = json!({"command": ["/bin/sh", "-ec"], "args": [script]});
        assert_eq!(found(container), ["args -Xmx 512m"], "{script}");
    }
}

#[test]
fn the_last_flag_that_a_runtime_reads_counts() {
    let java = |name: &str| json!({"name": name, "value": format!("-Xmx{}m -Xms1m", name.len())});
    let all = ["_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"].map(java);
    let container = json!({"command": ["java", "-Xmx1g", "-XX:MaxHeapSize=2g", "App"], "env": all});
    assert_eq!(
        found(container),
        ["env _JAVA_OPTIONS -Xmx 13m", "env _JAVA_OPTIONS -Xms 1m"]
    );
    let container = json!({"command": ["java", "-Xmx1g", "-XX:MaxHeapSize=2g", "App"], "env": all[1..]});
    assert!(found(container).contains(&"command -XX:MaxHeapSize 2g".to_owned()));
}

#[test]
fn arguments_of_the_application_are_ignored() {
    for words in [
        json!(["java", "-jar", "app.jar", "-Xmx1g"]),
        json!(["java", "-cp", "x", "Main", "-Xmx1g"]),
        json!(["java", "-m", "module/Main", "-Xmx1g"]),
        json!(["node", "-r", "dotenv", "server.js", "--max-old-space-size=100"]),
        json!(["npm", "run", "x", "--", "--max-old-space-size=100"]),
        json!(["sh", "-c", "exec /usr/bin/yarn start -- --max-old-space-size=100"]),
    ] {
        assert_eq!(found(json!({"command": words})), [""; 0]);
    }
}

#[test]
fn node_takes_underscores_and_one_dash() {
    for words in [
        json!(["node", "--max-old-space-size", "4096", "server.js"]),
        json!(["node", "--max_old_space_size", "4096", "server.js"]),
    ] {
        // "illegal value for flag --max-old-space-size of type size_t", says Node 20, and ends.
        assert_eq!(found(json!({ "command": words })), ["command --max-old-space-size "]);
    }
    for words in [
        json!(["node", "--max-old-space-size=4096", "server.js"]),
        json!(["node", "--max_old_space_size=4096", "server.js"]),
        json!(["node", "-max-old_space-size=4096", "server.js"]),
        json!(["npm", "--node-options=--max-old-space-size=4096", "start"]),
        json!(["npm", "exec", "--", "node", "--max-old-space-size=4096", "server.js"]),
        json!(["tini", "--", "node", "--max-old-space-size=4096", "server.js"]),
        json!([
            "sh",
            "-c",
            "DIR=/opt/npm tini -- node --max-old-space-size=4096 server.js"
        ]),
        json!([
            "pm2",
            "start",
            "a.js",
            "--node-args=--max-old-space-size=4096 --inspect"
        ]),
    ] {
        assert_eq!(
            found(json!({ "command": words })),
            ["command --max-old-space-size 4096"]
        );
    }
    let env = json!([{"name": "NODE_OPTIONS", "value": "--inspect --max-old-space-size=300"}]);
    assert_eq!(
        found(json!({ "env": env })),
        ["env NODE_OPTIONS --max-old-space-size 300"]
    );
}

#[test]
fn redis_takes_the_next_word() {
    for words in [
        json!([
            "redis-server",
            "--maxmemory",
            "512mb",
            "--maxmemory-policy",
            "allkeys-lru"
        ]),
        json!(["sh", "-c", "exec redis-server /etc/redis.conf --maxmemory 512mb"]),
        json!(["valkey-server", "--maxmemory 512mb"]),
        // Dragonfly takes the value in one word, too.
        json!(["dragonfly", "--maxmemory=512mb"]),
    ] {
        assert_eq!(found(json!({ "command": words })), ["command --maxmemory 512mb"]);
    }
    assert_eq!(found(json!({"args": ["--maxmemory"]})), ["args --maxmemory "]);
}

#[test]
fn a_share_may_be_the_next_word() {
    for (words, option) in [
        (
            json!(["prometheus", "--auto-gomemlimit.ratio", "0.8"]),
            "--auto-gomemlimit.ratio",
        ),
        (
            json!(["kube-state-metrics", "--auto-gomemlimit-ratio", "0.8"]),
            "--auto-gomemlimit-ratio",
        ),
        (json!(["kyverno", "-autoMemLimitRatio", "0.8"]), "--autoMemLimitRatio"),
        (
            json!(["thanos", "--auto-gomemlimit.refresh-interval", "0.8"]),
            "--auto-gomemlimit.refresh-interval",
        ),
    ] {
        assert_eq!(found(json!({ "command": words })), [format!("command {option} 0.8")]);
    }
    let empty = json!(["victoria-metrics", "-memory.allowedBytes=", "-memory.allowedPercent=80"]);
    assert_eq!(
        found(json!({ "command": empty })),
        ["command --memory.allowedBytes ", "command --memory.allowedPercent 80"]
    );
}

#[test]
fn references_are_replaced_as_by_the_kubelet() {
    let env = json!([
        {"name": "SIZE", "value": "700"},
        {"name": "HEAP", "value": "$(SIZE)m"},
        {"name": "OPTS", "value": "-Xms1m -Xmx$(HEAP)"},
        {"name": "LIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "app", "key": "heap"}}},
    ]);
    for (word, value) in [
        ("-Xmx$(HEAP)", "700m"),
        ("-Xmx$(LIMIT)m", "{limits.memory}m"),
        ("-Xmx$(MAP)", "{ConfigMap:app/heap}"),
        ("-Xmx$$(HEAP)", "$(HEAP)"),
        ("-Xmx$(GONE)", "$(GONE)"),
    ] {
        let settings = found(json!({"args": [word], "env": env}));
        assert!(settings.contains(&format!("args -Xmx {value}")), "{word}: {settings:?}");
    }
    for (script, value) in [
        ("java $OPTS App", "700m"),
        ("java -Xmx${HEAP} App", "700m"),
        ("java \"-Xmx${GONE:-12m}\" App", "12m"),
        ("java '-Xmx$HEAP' App", "$HEAP"),
        ("java -Xmx$((LIMIT / 2))m App", "$((LIMIT / 2))m"),
        ("export JAVA_TOOL_OPTIONS=\"-Xmx9m\"; java App", "9m"),
    ] {
        let settings = found(json!({"command": ["sh", "-c", script], "env": env}));
        assert!(
            settings.contains(&format!("command -Xmx {value}")),
            "{script}: {settings:?}"
        );
    }
}

#[test]
fn settings_are_read_from_variables_anywhere() {
    let env = json!([
        {"name": "GOMEMLIMIT", "value": "1GiB"},
        {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}},
        {"name": "COMPlus_GCHeapHardLimit", "value": "20000000"},
    ]);
    assert_eq!(
        found(json!({ "env": env })),
        [
            "env GOMEMLIMIT GOMEMLIMIT {limits.memory}",
            "env COMPlus_GCHeapHardLimit DOTNET_GCHeapHardLimit 20000000"
        ]
    );
    let both = json!([
        {"name": "DOTNET_GCHeapHardLimit", "value": "10000000"},
        {"name": "COMPlus_GCHeapHardLimit", "value": "20000000"},
    ]);
    assert_eq!(
        found(json!({ "env": both })),
        ["env DOTNET_GCHeapHardLimit DOTNET_GCHeapHardLimit 10000000"]
    );
    let script = json!({"command": ["sh", "-c", "GOMEMLIMIT=300MiB ./server"]});
    assert_eq!(found(script), ["command GOMEMLIMIT 300MiB"]);
}

#[test]
fn quotes_and_files_are_read_as_runtimes_do() {
    let of = |name: &str, value: &str| found(json!({"env": [{"name": name, "value": value}]}));
    for (name, value, setting) in [
        (
            "NODE_OPTIONS",
            "\"--max-old-space-size=512\"",
            "--max-old-space-size 512",
        ),
        (
            "NODE_OPTIONS",
            "--require \"/my app.js\" --max-old-space-size=512",
            "--max-old-space-size 512",
        ),
        (
            "NODE_OPTIONS",
            "--max-old-space-size='512'",
            "--max-old-space-size '512'",
        ),
        ("JAVA_TOOL_OPTIONS", "'-Xmx512m'", "-Xmx 512m"),
        ("JDK_JAVA_OPTIONS", "@/opt/jvm.args -Xmx512m", "-Xmx 512m"),
        ("GOMEMLIMIT", " 512MiB", "GOMEMLIMIT  512MiB"),
        ("GOMEMLIMIT", "512MiB\n", "GOMEMLIMIT 512MiB\n"),
    ] {
        assert_eq!(of(name, value), [format!("env {name} {setting}")]);
    }
    let script = "JAVA_OPTS=\"-Xmx$(free -m | awk '{print $2}')m\" exec /start.sh";
    let settings = found(json!({"command": ["sh", "-c", script]}));
    assert!(settings[0].starts_with("command -Xmx $(free -m"), "{settings:?}");
}

#[test]
fn references_that_multiply_end() {
    let level = |level: usize| json!({"name": format!("L{level}"), "value": format!("$(L{0})", level - 1).repeat(50)});
    let mut env: Vec<Value> = (1..40).map(level).collect();
    env.insert(0, json!({"name": "L0", "value": ""}));
    let container = json!({"args": ["-Xmx$(L39)", "-Xms1m"], "env": env});
    assert!(found(container).len() <= 2);
}

proptest! {
    #[test]
    fn anything_is_read_and_little_kept(
        words in prop::collection::vec(r#"(-Xm[xs]|--max-old-space-size=?|sh|java|-c|\$|\(|\)|\{|\}|'|"|\\|#|A|=| |é|[0-9]){0,30}"#, 0..6),
        values in prop::collection::vec(r#"(\$\(A\)|\$\(B\)|-Xmx|'|\$\{A:-|[0-9]| ){0,20}"#, 0..4),
    ) {
        let names = ["A", "B", "GOMEMLIMIT", "JAVA_OPTS"];
        let env: Vec<Value> = names.iter().zip(&values).map(|(name, value)| json!({"name": name, "value": value})).collect();
        let container = json!({"command": words, "args": values, "env": env});
        let container: Container = serde_json::from_value(container).unwrap();
        prop_assert!(container.memory_settings.len() <= 8);
        for setting in &container.memory_settings {
            prop_assert!(setting.value.chars().count() <= LONGEST_VALUE + 1);
        }
    }
}

#[test]
fn a_script_has_variables_of_its_own() {
    let env = json!([{"name": "SIZE", "value": "700m"}]);
    for (script, values) in [
        ("HEAP=512m; java -Xmx$HEAP -jar a.jar", &["512m"][..]),
        ("HEAP=512m\nexec java -Xmx${HEAP} -jar a.jar", &["512m"]),
        (
            "export HEAP=512m UNIT=m && exec java -Xmx\"$HEAP\" -jar a.jar",
            &["512m"],
        ),
        ("HEAP=512; MAX=${HEAP}m; MAX=$MAX java -Xmx$MAX App", &["512m"]),
        ("A=1 B=2 java -Xmx1g App", &["1g"]),
        ("JAVA_HOME=/opt/java ./run.sh -Xmx1g", &["1g"]),
        (
            "export JAVA_TOOL_OPTIONS=-Xmx9m; exec java -Xmx1g -jar a.jar && echo done",
            &["1g"],
        ),
        ("OPTS='-Xmx1g -Dx=y'; OPTS=\"$OPTS -Xmx2g\"; java $OPTS App", &["2g"]),
        ("SIZE=${SIZE:-512m}; java -Xmx$SIZE App", &["700m"]),
        ("HEAP=${HEAP:-512m}; java -Xmx$HEAP App", &["512m"]),
        (": ${HEAP:=512m}; java -Xmx$HEAP App", &["512m"]),
        ("java -Xmx${HEAP:-1m} App; java -Xmx${HEAP:-2m} App", &["2m"]),
        (
            "if [ -z \"$SIZE\" ]; then X=1; SIZE=512m; fi; java -Xmx$SIZE App",
            &["700m"],
        ),
        ("[ -n \"$DEBUG\" ] && SIZE=2g; java -Xmx$SIZE App", &["700m"]),
        ("[ -n \"$DEBUG\" ] &&\n\n SIZE=2g\nHEAP=1g; java -Xmx$HEAP App", &["1g"]),
        (
            "case $X in a) SIZE=1g;; b) SIZE=2g;; esac; java -Xmx$SIZE App",
            &["700m"],
        ),
        ("if true; then HEAP=1g; fi; HEAP=2g; java -Xmx$HEAP App", &["2g"]),
        (
            "SIZE=$(cat /size); java -Xmx${SIZE}k -Xmx${SIZE} -jar a.jar",
            &["${SIZE}"],
        ),
        ("SIZE=$((SIZE / 2)); java -Xmx${SIZE}m App", &["${SIZE}m"]),
        ("for SIZES in 1g 2g; do java -Xmx$SIZES App; done", &["$SIZES"]),
        ("echo -Xmx1g; echo \"more than -Xmx1g\"; ps | grep -- -Xmx1g", &[]),
        ("java \"-Dhint=a -Xmx1g\" App", &[]),
    ] {
        let values: Vec<_> = values.iter().map(|value| format!("command -Xmx {value}")).collect();
        assert_eq!(
            found(json!({"command": ["sh", "-c", script], "env": env})),
            values,
            "{script}"
        );
    }
    let doubling = "A=xxxxxxxx;".to_owned() + &"A=$A$A;".repeat(60) + "java -Xmx$A App";
    assert!(found(json!({"command": ["sh", "-c", doubling]})).len() <= 1);
}

#[test]
fn flags_in_one_word_are_read_as_flags() {
    assert_eq!(
        found(json!({"args": ["--java-options", "-Xmx1g -Xms1g"]})),
        ["args -Xmx 1g", "args -Xms 1g"]
    );
    let java = json!({"command": ["java", "-Xmx1g -Xms1g", "App"]});
    assert_eq!(found(java), ["command -Xmx 1g -Xms1g"]);
    assert_eq!(found(json!({"command": ["sbt", "-J-Xmx1g"]})), ["command -Xmx 1g"]);
}

#[test]
fn filled_in_values_stand_beside_written_ones() {
    let filled_in = |divisor: Value, resource: &str, resources: Value| {
        let from = json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
        let env = json!([{"name": "M", "valueFrom": from}]);
        let container = json!({"args": ["-Xms1m", "-Xmx$(M)m"], "env": env, "resources": resources});
        let container: Container = serde_json::from_value(container).unwrap();
        assert_eq!(container.memory_settings[0].filled_in, None);
        assert_eq!(container.memory_settings[1].value, format!("{{{resource}}}m"));
        container.memory_settings[1].filled_in.clone()
    };
    let limit = json!({"limits": {"memory": "1025Mi"}});
    for (divisor, resource, resources, expected) in [
        (json!("1Mi"), "limits.memory", &limit, Some("1025m")),
        (json!("1Gi"), "requests.memory", &limit, Some("2m")),
        (json!(1), "limits.memory", &limit, Some("1074790400m")),
        (Value::Null, "limits.memory", &limit, Some("1074790400m")),
        (json!("0"), "limits.memory", &limit, Some("1074790400m")),
        (json!("1Gi"), "limits.memory", &json!({}), Some("8m")),
        (json!("1Gi"), "requests.memory", &json!({}), None),
        (json!("1m"), "limits.cpu", &limit, None),
    ] {
        let found = filled_in(divisor.clone(), resource, resources.clone());
        assert_eq!(found.as_deref(), expected, "{divisor} {resource}");
    }
}

#[test]
fn amounts_of_another_container_are_not_filled_in() {
    let from = json!({"resourceFieldRef": {"containerName": "app", "resource": "limits.memory"}});
    let env = json!([{"name": "GOMEMLIMIT", "valueFrom": from}]);
    let filled_in = |name: &str| {
        let limit = json!({"limits": {"memory": "1Ki"}});
        let container = json!({"name": name, "env": env, "resources": limit});
        let container: Container = serde_json::from_value(container).unwrap();
        container.memory_settings[0].filled_in.clone()
    };
    assert_eq!(filled_in("app").as_deref(), Some("1024"));
    assert_eq!(filled_in("side"), None);
}
