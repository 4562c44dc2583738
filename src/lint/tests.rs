use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn container(mut declared: Value) -> Container {
    declared["name"] = json!("app");
    serde_json::from_value(declared).unwrap()
}

fn rules(declared: Value) -> Vec<(LintRule, String)> {
    let found = findings(&container(declared), None).into_iter();
    found.map(|finding| (finding.rule, finding.setting.value)).collect()
}

fn with_limit(words: &Value, limit: &str) -> Value {
    json!({"args": words, "resources": {"limits": {"memory": limit}}})
}

/// A flag, or a variable, in a container with this limit.
fn with_setting(setting: &str, limit: &str) -> Value {
    let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
    let mut declared = match setting.starts_with('-') {
        true => json!({"args": [setting]}),
        false => json!({"env": [{"name": name, "value": value}]}),
    };
    declared["resources"] = json!({"limits": {"memory": limit}});
    declared
}

#[test]
fn a_heap_that_fills_its_limit_is_an_error() {
    let of = |heap: &str, limit: &str| rules(with_limit(&json!([format!("-Xmx{heap}")]), limit))[0].0;
    assert_eq!(of("512m", "1Gi"), LintRule::FixedHeap);
    assert_eq!(of("512m", "512Mi"), LintRule::HeapFillsLimit);
    assert_eq!(of("512m", "500Mi"), LintRule::HeapFillsLimit);
    assert_eq!(LintRule::HeapFillsLimit.severity(), LintSeverity::Error);
}

#[test]
fn a_container_without_limit_has_the_pods() {
    let of_pod: Requirements = serde_json::from_value(json!({"limits": {"memory": "512Mi"}})).unwrap();
    let rule = |resources: Value| {
        let container = container(json!({"args": ["-Xmx512m"], "resources": resources}));
        findings(&container, Some(of_pod))[0].rule
    };
    assert_eq!(rule(json!({})), LintRule::HeapFillsLimit);
    assert_eq!(rule(json!({"limits": {"memory": "1Gi"}})), LintRule::FixedHeap);
}

/// After kubernetes/kubernetes#132603.
#[test]
fn a_pods_limit_is_filled_in() {
    let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}});
    let found = |of_pod: &str, own: &str, setting: &str| {
        let of_pod: Requirements = serde_json::from_value(json!({"limits": {"memory": of_pod}})).unwrap();
        let limits = json!({"limits": {"memory": own}});
        let env = json!([{"name": "M", "valueFrom": from}]);
        let container = container(json!({"env": env, "args": [setting], "resources": limits}));
        findings(&container, Some(of_pod))[0].to_string()
    };
    for limit in ["512Mi", "16Gi"] {
        for (setting, heap) in [
            ("-Xmx$(M)m", "the Java heap"),
            ("--max-old-space-size=$(M)", "the old space of Node's heap"),
        ] {
            let text = format!("lets {heap} have {limit}, and the memory limit is {limit}: ");
            assert!(found(limit, "0", setting).contains(&text), "{limit} {setting}");
        }
    }
    assert!(found("16Gi", "1Gi", "-Xmx$(M)m").contains(" have 1Gi, and the memory limit is 1Gi: "));
    let quarter = found("512Mi", "0", "-XX:MaxRAM=$(M)m");
    assert!(quarter.contains(" a value that is filled in once"), "{quarter}");
}

/// The kubelet fills in 100 for 16Gi, where lint reads 50 for 8Gi: the number doubles, and so does what it is a share of.
#[test]
fn a_pods_limit_is_filled_in_for_shares() {
    let of_pod: Requirements = serde_json::from_value(json!({"limits": {"memory": "16Gi"}})).unwrap();
    let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "171798692"}});
    let env = json!([{"name": "SHARE", "valueFrom": from}]);
    let container = container(json!({"env": env, "args": ["-XX:MaxRAMPercentage=$(SHARE)"]}));
    let text = findings(&container, Some(of_pod))[0].to_string();
    let full = "lets the Java heap have 16Gi, and the memory limit is 16Gi: ";
    assert!(text.contains(full), "{text}");
}

#[test]
fn a_size_switches_a_share_off() {
    let found = rules(json!({"args": ["-XX:MaxRAMPercentage=75", "-Xmx1g"]}));
    assert_eq!(found, [(LintRule::FixedHeap, "1g".to_owned())]);
    let found = rules(json!({"args": ["-XX:MaxRAMPercentage=75"]}));
    assert_eq!(found, [(LintRule::ReadAtStart, "75".to_owned())]);
    let found = rules(json!({"args": ["-memory.allowedPercent=75", "-memory.allowedBytes", "1GiB"]}));
    assert_eq!(found, [(LintRule::FixedHeap, "1GiB".to_owned())]);
}

#[test]
fn a_share_of_a_fixed_amount_is_fixed() {
    let of = |words: Value| {
        let container = container(json!({"args": words, "resources": {"limits": {"memory": "4Gi"}}}));
        let found = findings(&container, None);
        let found = found
            .iter()
            .map(|finding| (finding.rule, finding.setting.option.name(), finding.amount));
        (found.collect::<Vec<_>>(), limit_floor(&container).map(Bytes::get))
    };
    let fixed = |heap: u64, floor: u64| {
        let finding = (LintRule::FixedHeap, "-XX:MaxRAM", Amount::Fixed(Bytes::new(heap << 20)));
        (vec![finding], Some(floor << 20))
    };
    assert_eq!(
        of(json!(["-XX:MaxRAM=2g", "-XX:MaxRAMPercentage=50"])),
        fixed(1024, 1127)
    );
    assert_eq!(of(json!(["-XX:MaxRAM=2g"])), fixed(512, 576));
    assert_eq!(of(json!(["-XX:MaxRAM=200m"])), fixed(100, 164), "a small container");
    let found = rules(json!({"args": ["-XX:MaxRAM=2g", "-Xmx1g"]}));
    assert_eq!(found, [(LintRule::FixedHeap, "1g".to_owned())]);
    let limit = json!({"resourceFieldRef": {"resource": "limits.memory"}});
    let filled_in = json!({"env": [{"name": "M", "valueFrom": limit}], "args": ["-XX:MaxRAM=$(M)"]});
    assert_eq!(
        rules(filled_in),
        [(LintRule::ReadAtStart, "{limits.memory}".to_owned())]
    );
}

/// After kubernetes/kube-state-metrics#2447, prometheus/prometheus#15373 and kyverno/kyverno#14619.
#[test]
fn a_share_counts_only_where_it_is_used() {
    let (dashed, dotted) = ("--auto-gomemlimit-ratio=0.8", "--auto-gomemlimit.ratio=0.8");
    for (words, expected) in [
        (&[dashed][..], 1),
        (&[dashed, "--auto-gomemlimit"], 1),
        (&[dashed, "--auto-gomemlimit=False"], 0),
        (&["--enable-auto-gomemlimit", dotted], 1),
        (&[dotted], 1),
        (&[dotted, "--no-auto-gomemlimit"], 0),
        (&["--no-auto-gomemlimit", dotted, "--auto-gomemlimit"], 1),
        (&["--autoMemLimitRatio=0.8"], 1),
        (&["--autoMemLimitRatio=0.8", "--autoMemLimitEnabled=false"], 0),
    ] {
        assert_eq!(rules(json!({ "args": words })).len(), expected, "{words:?}");
    }
}

#[test]
fn a_databases_cache_is_a_heap() {
    for (words, full, smaller) in [
        (["mysqld", "--innodb-buffer-pool-size="], "1G", "512M"),
        (["mariadbd", "--innodb_buffer_pool_size "], "1073741824", "512m"),
        (["mongod", "--wiredTigerCacheSizeGB "], "1", "0.5"),
        (["postgres", "-c shared_buffers="], "131072", "512MB"),
    ] {
        let rule = |value: &str| {
            let words = format!("{}{value}", words.join(" "));
            let words: Vec<&str> = words.split(' ').collect();
            rules(with_limit(&json!(words), "1Gi"))[0].0
        };
        assert_eq!(rule(full), LintRule::HeapFillsLimit, "{words:?}");
        assert_eq!(rule(smaller), LintRule::FixedHeap, "{words:?}");
        assert_eq!(rule("1gb"), LintRule::UnreadableValue, "{words:?}");
    }
    assert_eq!(
        message("--innodb-buffer-pool-size=512M", "1Gi"),
        "--innodb-buffer-pool-size \"512M\" in args fixes the InnoDB buffer pool at 512Mi when the process starts: a higher memory \
         limit does not enlarge it, and vscaled does not lower the limit below 576Mi. Change --innodb-buffer-pool-size with the \
         limit and restart, or run SET GLOBAL when its limit changes"
    );
}

#[test]
fn dragonfly_has_its_notation_in_two_words() {
    let rule = |words: Value| rules(with_limit(&words, "1Gi"))[0].0;
    assert_eq!(rule(json!(["dragonfly", "--maxmemory", "0.5gb"])), LintRule::FixedHeap);
    assert_eq!(
        rule(json!(["sh -c 'exec /usr/local/bin/dragonfly --maxmemory 1g'"])),
        LintRule::HeapFillsLimit
    );
    let redis = json!(["redis-server", "--dir=/data/dragonfly", "--maxmemory", "0.5gb"]);
    assert_eq!(rule(redis), LintRule::UnreadableValue);
}

#[test]
fn a_limit_that_is_read_again_is_followed() {
    let of = |every: &str| {
        let refresh = format!("--auto-gomemlimit.refresh-interval={every}");
        rules(json!({"args": ["--auto-gomemlimit.ratio=0.9", refresh]})).len()
    };
    assert_eq!(["1m", "30s", "100ms", "$(EVERY)"].map(of), [0; 4]);
    assert_eq!(["0s", "0", ""].map(of), [1; 3]);
    let whole = json!(["--auto-gomemlimit.ratio=1", "--auto-gomemlimit.refresh-interval=1m"]);
    assert_eq!(rules(with_limit(&whole, "1Gi"))[0].0, LintRule::HeapFillsLimit);
}

#[test]
fn restarting_resizes_have_no_finding() {
    let restarts = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let of = |words: Value| rules(json!({"args": words, "resizePolicy": restarts}));
    assert_eq!(of(json!(["-XX:MaxRAMPercentage=75"])), []);
    assert_eq!(of(json!(["-Xmx1g"])), [(LintRule::FixedHeap, "1g".to_owned())]);
}

#[test]
fn a_number_in_the_wrong_unit_is_an_error() {
    let of = |setting: &str, divisor: Value, limit: Value| {
        let from = json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": divisor}});
        let mut env = vec![json!({"name": "M", "valueFrom": from})];
        let (name, value) = setting.split_once('=').unwrap();
        let mut args = Vec::new();
        if name.starts_with('-') {
            args.push(json!(setting));
        } else {
            env.push(json!({"name": name, "value": value}));
        }
        let found = rules(json!({"args": args, "env": env, "resources": {"limits": {"memory": limit}}}));
        found.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    let (fine, fills, limit) = (LintRule::ReadAtStart, LintRule::HeapFillsLimit, json!("512Mi"));
    for (setting, divisor, expected) in [
        ("GOMEMLIMIT=$(M)", Value::Null, fills),
        ("GOMEMLIMIT=$(M)", json!("1"), fills),
        ("GOMEMLIMIT=$(M)", json!(0), fills),
        ("GOMEMLIMIT=$(M)", json!("1Mi"), LintRule::HeapTooSmall),
        ("GOMEMLIMIT=$(M)", json!("1Ki"), LintRule::HeapTooSmall),
        ("GOMEMLIMIT=$(M)MiB", json!("1Mi"), fills),
        ("GOMEMLIMIT=$(M)MiB", json!("1"), LintRule::HeapFillsLimit),
        ("GOMEMLIMIT=$(M)Mi", json!("1Mi"), LintRule::UnreadableValue),
        ("-XX:MaxHeapSize=$(M)", json!("1"), fills),
        ("-XX:MaxHeapSize=$(M)m", json!("1Mi"), fills),
        ("-XX:MaxHeapSize=$(M)", json!("1Mi"), LintRule::HeapTooSmall),
        ("JVM_XMX=$(M)", json!("1Mi"), fills),
        ("JVM_XMX=$(M)", json!("1"), fills),
        ("--max-old-space-size=$(M)", json!("1Mi"), fills),
        ("--max-old-space-size=$(M)", json!("1"), LintRule::HeapFillsLimit),
        ("DOTNET_GCHeapHardLimit=$(M)", json!("1"), LintRule::HeapFillsLimit),
        ("-XX:MaxRAMPercentage=$(M)", json!("1Mi"), LintRule::UnreadableValue),
        ("GOMEMLIMIT=512", Value::Null, LintRule::HeapTooSmall),
        ("-XX:MaxHeapSize=512", Value::Null, LintRule::HeapTooSmall),
    ] {
        assert_eq!(
            of(setting, divisor.clone(), limit.clone()),
            [expected],
            "{setting} {divisor}"
        );
    }
    // Without a limit it is what the node has, which is known well enough for that.
    assert_eq!(
        of("GOMEMLIMIT=$(M)", json!("1Mi"), Value::Null),
        [LintRule::HeapTooSmall]
    );
    assert_eq!(of("-XX:MaxHeapSize=$(M)m", json!("1Mi"), Value::Null), [fine]);
}

#[test]
fn the_floor_is_the_largest_heap_with_a_margin() {
    let floor = |words: Value| limit_floor(&container(json!({ "args": words }))).map(Bytes::get);
    assert_eq!(floor(json!(["-Xms100m", "-Xmx200m"])), Some(264 << 20));
    assert_eq!(floor(json!(["-Xmx10g"])), Some(11 << 30));
    assert_eq!(floor(json!(["-Xmx1g"])), Some(1127 << 20));
    assert_eq!(floor(json!(["-XX:MaxRAMPercentage=75"])), None);
    assert_eq!(floor(json!(["-Xmxabc", "-Xmx12q"])), None);
}

#[test]
fn messages_name_setting_reason_and_remedy() {
    let env = |name: &str, from: Value| {
        let mut variable = from;
        variable["name"] = json!(name);
        json!({ "env": [variable] })
    };
    for (declared, message) in [
        (
            with_limit(&json!(["-Xmx512m"]), "1Gi"),
            "-Xmx \"512m\" in args fixes the Java heap at 512Mi when the process starts: a higher memory limit does not \
             enlarge it, and vscaled does not lower the limit below 576Mi. Change -Xmx with the limit and restart, or use \
             -XX:MaxRAMPercentage, which a restart reads again",
        ),
        (
            with_limit(&json!(["-Xmx2g"]), "1Gi"),
            "-Xmx \"2g\" in args lets the Java heap have 2Gi, and the memory limit is 1Gi: the kernel kills the container \
             before the heap is full. Set -Xmx lower, or the limit to 2253Mi or more",
        ),
        (
            with_limit(&json!(["-Xms512m"]), "1Gi"),
            "-Xms \"512m\" in args keeps the Java heap at 512Mi or more: a shrink of the memory limit frees nothing below \
             that, and vscaled does not lower the limit below 576Mi. Set -Xms lower to let the heap shrink",
        ),
        (
            json!({"args": ["--max-old-space-size=4g"]}),
            "--max-old-space-size \"4g\" in args cannot be read: node does not start with it; write a whole number of MiB",
        ),
        (
            env(
                "GOMEMLIMIT",
                json!({"valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}),
            ),
            "GOMEMLIMIT \"{limits.memory}\" in env GOMEMLIMIT gives the memory of the Go runtime a value that is filled in \
             once, when the container starts: after a resize in place it stays as it was. Set resizePolicy RestartContainer \
             for memory, or restart the container after a resize",
        ),
        (
            env("GOMEMLIMIT", json!({"value": "512"})),
            "GOMEMLIMIT \"512\" in env GOMEMLIMIT gives the memory of the Go runtime less than 1Mi, too little for any process: \
             give the number its unit, or the reference another divisor",
        ),
        (
            env("DOTNET_GCHeapHardLimit", json!({"value": "0x20000000"})),
            "DOTNET_GCHeapHardLimit \"0x20000000\" in env DOTNET_GCHeapHardLimit fixes the .NET heap (a hexadecimal value) at 512Mi when the \
             process starts: a higher memory limit does not enlarge it, and vscaled does not lower the limit below 576Mi. \
             Change DOTNET_GCHeapHardLimit with the limit and restart, or use DOTNET_GCHeapHardLimitPercent and call \
             GC.RefreshMemoryLimit() when the limit changes",
        ),
    ] {
        assert_eq!(findings(&container(declared), None)[0].to_string(), message);
    }
}

#[test]
fn every_notation_of_a_full_heap_is_an_error() {
    let of = |setting: &str, limit: &str| {
        let found = rules(with_setting(setting, limit));
        found.into_iter().map(|(rule, _)| rule).collect::<Vec<_>>()
    };
    let (fills, fine) = (LintRule::HeapFillsLimit, LintRule::ReadAtStart);
    for (setting, limit, expected) in [
        ("-XX:MaxRAMPercentage=100", "1Gi", &[fills][..]),
        ("-XX:MaxRAMPercentage=100.0", "1Gi", &[fills]),
        ("-XX:MaxRAMPercentage=75", "1Gi", &[fine]),
        ("-XX:MaxRAMFraction=1", "1Gi", &[fills]),
        ("-XX:MaxRAMFraction=2", "1Gi", &[fine]),
        // Of a small container the other share is the maximum.
        ("-XX:MaxRAMPercentage=100", "200Mi", &[fine]),
        ("-XX:MinRAMPercentage=100", "100Mi", &[fills]),
        ("-XX:MinRAMFraction=1", "100Mi", &[fills]),
        ("-XX:MinRAMPercentage=100", "1Gi", &[]),
        // The initial heap is no larger than the maximum.
        ("-XX:InitialRAMPercentage=100", "1Gi", &[fine]),
        ("-XX:InitialRAMFraction=1", "1Gi", &[fine]),
        ("--max-old-space-size-percentage=100", "1Gi", &[fills]),
        ("DOTNET_GCHeapHardLimitPercent=64", "1Gi", &[fills]),
        ("--maxmemory 1gb", "1Gi", &[fills]),
        ("--maxmemory 1g", "1Gi", &[LintRule::FixedHeap]),
        ("--maxmemory 512Mi", "1Gi", &[LintRule::UnreadableValue]),
        // After dragonflydb/dragonfly#302: Redis takes no value in the same word, and Dragonfly reads other units.
        ("--maxmemory=1g", "1Gi", &[fills]),
        ("--maxmemory=512Mi", "1Gi", &[LintRule::FixedHeap]),
        // After VictoriaMetrics/VictoriaMetrics#11276.
        ("-memory.allowedPercent=100", "1Gi", &[fills]),
        ("--memory.allowedPercent=45.0", "1Gi", &[fine]),
        ("-memory.allowedBytes=1GiB", "1Gi", &[fills]),
        ("-memory.allowedBytes=1GB", "1Gi", &[LintRule::FixedHeap]),
        ("-memory.allowedBytes=0", "1Gi", &[]),
        ("AUTOMEMLIMIT=1.0", "1Gi", &[fills]),
        ("AUTOMEMLIMIT=0.9", "1Gi", &[fine]),
        ("AUTOMEMLIMIT=off", "1Gi", &[]),
        ("--auto-gomemlimit.ratio=1", "1Gi", &[fills]),
        ("--auto-gomemlimit.ratio=0.9", "1Gi", &[fine]),
        // After prometheus-operator/prometheus-operator#6591 and kyverno/kyverno#14619.
        ("--auto-gomemlimit-ratio=1.0", "1Gi", &[fills]),
        ("--auto-gomemlimit-ratio=0.9", "1Gi", &[fine]),
        ("--auto-gomemlimit-ratio=0.0", "1Gi", &[]),
        ("--autoMemLimitRatio=1", "1Gi", &[fills]),
        ("GOMEMLIMIT=1073741824", "1Gi", &[fills]),
        ("SOLR_HEAP=1g", "1Gi", &[fills]),
        ("HADOOP_HEAPSIZE_MAX=1024", "1Gi", &[fills]),
        ("JAVA_MAX_MEM_RATIO=100", "1Gi", &[fills]),
        // After kubeflow/spark-operator#781.
        ("SPARK_EXECUTOR_MEMORY=1024m", "1Gi", &[fills]),
        ("SPARK_EXECUTOR_MEMORY=1024m", "1408Mi", &[LintRule::FixedHeap]),
        ("ZOO_HEAP_SIZE=1024", "384Mi", &[fills]),
        ("JVM_XMX=1g", "1Gi", &[fills]),
        ("JVM_XMX=1024", "1Gi", &[fills]),
        ("JVM_XMX=1023", "1Gi", &[LintRule::FixedHeap]),
        ("JVM_XMX=1073741823", "1Gi", &[LintRule::FixedHeap]),
        ("STRIMZI_DYNAMIC_HEAP_PERCENTAGE=100", "1Gi", &[fills]),
        ("STRIMZI_DYNAMIC_HEAP_PERCENTAGE=75", "1Gi", &[fine]),
        ("SOLR_HEAP=", "1Gi", &[]),
    ] {
        assert_eq!(of(setting, limit), expected, "{setting} {limit}");
    }
    let restarts = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    let limits = json!({"limits": {"memory": "1Gi"}});
    let found = rules(json!({"args": ["-XX:MaxRAMPercentage=100"], "resizePolicy": restarts, "resources": limits}));
    assert_eq!(found[0].0, fills);
}

proptest! {
    #[test]
    fn any_value_is_judged(value in r#"(off|[0-9a-fA-FxX]{0,20}|[kmgtKMGT]i?B?|\PC{0,4}){0,3}"#) {
        let env: Vec<Value> = ["GOMEMLIMIT", "DOTNET_GCHeapHardLimit", "DOTNET_GCHeapHardLimitPercent"]
            .iter().map(|name| json!({"name": name, "value": value})).collect();
        let args = ["-Xmx", "-Xms", "-XX:MaxRAMPercentage=", "-XX:MinRAMPercentage=", "-XX:InitialRAMFraction=", "--max-old-space-size="]
            .map(|flag| format!("{flag}{value}"));
        let container = container(json!({"args": args, "env": env}));
        for finding in findings(&container, None) {
            prop_assert!(finding.to_string().contains(finding.setting.option.name()));
        }
        prop_assert!(limit_floor(&container).is_none_or(|floor| floor.get() > LEAST_MARGIN));
    }
}

/// The message of the only finding about a flag, or a variable, in a container with this limit.
fn message(setting: &str, limit: &str) -> String {
    let found = findings(&container(with_setting(setting, limit)), None);
    assert_eq!(found.len(), 1, "{setting}");
    found[0].to_string()
}

#[test]
fn unreadable_values_come_with_readable_ones() {
    let percentage = "the process does not start with it; write a percentage above 0 and up to 100";
    let fraction = "the process does not start with it; write a whole number of 1 or more, which divides the limit";
    let java = "the JVM does not start with it; write a whole number of bytes, or one with k, m, g or t";
    for (setting, remedy) in [
        ("-Xmx1x", java),
        ("-Xms1x", java),
        ("-XX:MaxHeapSize=1x", java),
        ("-XX:InitialHeapSize=1x", java),
        ("-XX:MaxRAM=1x", java),
        ("-XX:MaxRAMPercentage=0", percentage),
        ("-XX:MinRAMPercentage=0", percentage),
        ("-XX:InitialRAMPercentage=0", percentage),
        ("--max-old-space-size-percentage=200", percentage),
        ("-XX:MaxRAMFraction=0", fraction),
        ("-XX:MinRAMFraction=0", fraction),
        ("-XX:InitialRAMFraction=0", fraction),
        (
            "AUTOMEMLIMIT=2",
            "automemlimit passes it over; write a number above 0 and up to 1, or off",
        ),
        (
            "--auto-gomemlimit.ratio=90",
            "the process does not start with it; write a number above 0 and up to 1",
        ),
        (
            "GOMEMLIMIT=1Gi",
            "a Go program does not start with it; write bytes, or a whole number with KiB, MiB, GiB or TiB",
        ),
        (
            "DOTNET_GCHeapHardLimit=1g",
            "the .NET runtime passes it over; write a hexadecimal number, 0x20000000 for 512 MiB",
        ),
        (
            "DOTNET_GCHeapHardLimitPercent=200",
            "the .NET runtime passes it over; write a hexadecimal number, 0x4B for 75 percent",
        ),
        (
            "-memory.allowedPercent=0.5",
            "VictoriaMetrics does not start with it; write a percentage from 1 to 100",
        ),
    ] {
        let message = message(setting, "1Gi");
        assert!(
            message.ends_with(&format!(" cannot be read: {remedy}")),
            "{setting}: {message}"
        );
    }
}

/// The option after this one: the compiler asks for the place of a new one.
fn next(option: &MemoryOption) -> Option<MemoryOption> {
    use MemoryOption as Is;
    match option {
        Is::JavaMaxHeap => Some(Is::JavaMaxHeapSize),
        Is::JavaMaxHeapSize => Some(Is::JavaInitialHeap),
        Is::JavaInitialHeap => Some(Is::JavaInitialHeapSize),
        Is::JavaInitialHeapSize => Some(Is::JavaMaxRam),
        Is::JavaMaxRam => Some(Is::JavaMaxRamPercentage),
        Is::JavaMaxRamPercentage => Some(Is::JavaMaxRamFraction),
        Is::JavaMaxRamFraction => Some(Is::JavaMinRamPercentage),
        Is::JavaMinRamPercentage => Some(Is::JavaMinRamFraction),
        Is::JavaMinRamFraction => Some(Is::JavaInitialRamPercentage),
        Is::JavaInitialRamPercentage => Some(Is::JavaInitialRamFraction),
        Is::JavaInitialRamFraction => Some(Is::GoMemoryLimit),
        Is::GoMemoryLimit => Some(Is::GoShare),
        Is::GoShare => Some(Is::GoShareFlag),
        Is::GoShareFlag => Some(Is::GoShareDashedFlag),
        Is::GoShareDashedFlag => Some(Is::GoShareCamelFlag),
        Is::GoShareCamelFlag => Some(Is::GoRefresh),
        Is::GoRefresh => Some(Is::GoSwitch),
        Is::GoSwitch => Some(Is::GoSwitchOff),
        Is::GoSwitchOff => Some(Is::NodeOldSpace),
        Is::NodeOldSpace => Some(Is::NodeOldSpacePercentage),
        Is::NodeOldSpacePercentage => Some(Is::DotnetHeapLimit),
        Is::DotnetHeapLimit => Some(Is::DotnetHeapLimitPercent),
        Is::DotnetHeapLimitPercent => Some(Is::RedisMaxMemory),
        Is::RedisMaxMemory => Some(Is::DragonflyMaxMemory),
        Is::DragonflyMaxMemory => Some(Is::VictoriaMetricsBytes),
        Is::VictoriaMetricsBytes => Some(Is::VictoriaMetricsPercent),
        Is::VictoriaMetricsPercent => Some(Is::InnodbBufferPool),
        Is::InnodbBufferPool => Some(Is::WiredTigerCache),
        Is::WiredTigerCache => Some(Is::PostgresBuffers),
        Is::PostgresBuffers => None,
    }
}

#[test]
fn each_option_has_its_texts() {
    let names = include_str!("texts.txt").lines().filter(|line| line.contains(" | "));
    let names = names.flat_map(|line| line.split(" | ").next().unwrap().split(' '));
    let mut named: Vec<&str> = names.collect();
    let mut options: Vec<String> = Vec::new();
    for option in std::iter::successors(Some(MemoryOption::JavaMaxHeap), next) {
        assert!(!texts(option).contains(&""), "{option:?}");
        options.push(format!("{option:?}"));
    }
    named.sort_unstable();
    options.sort_unstable();
    assert_eq!(named, options, "each option once, and no other");
}

#[test]
fn each_runtime_has_its_memory_and_remedy() {
    for (setting, memory, remedy) in [
        (
            "-Xmx512m",
            "fixes the Java heap at 512Mi",
            "or use -XX:MaxRAMPercentage, which a restart reads again",
        ),
        (
            "-XX:MaxRAM=2g",
            "fixes the Java heap at 512Mi",
            "or leave it out: the JVM then takes a share of the limit, which a restart reads again",
        ),
        (
            "GOMEMLIMIT=512MiB",
            "fixes the memory of the Go runtime at 512Mi",
            "or let the program call debug.SetMemoryLimit when its limit changes",
        ),
        (
            "--max-old-space-size=512",
            "fixes the old space of Node's heap at 512Mi",
            "or use --max-old-space-size-percentage, which a restart reads again",
        ),
        (
            "-XX:MaxRAMPercentage=75",
            "gives the Java heap a share of the limit that is computed once",
            "or restart the container after a resize",
        ),
        (
            "-XX:MaxRAMPercentage=100",
            "lets the Java heap have 1Gi, and the memory limit is 1Gi",
            "give -XX:MaxRAMPercentage at most nine tenths",
        ),
    ] {
        let message = message(setting, "1Gi");
        assert!(message.contains(memory) && message.ends_with(remedy), "{message}");
    }
}

#[test]
fn only_what_breaks_a_container_is_an_error() {
    let errors = LintRule::ALL
        .iter()
        .filter(|rule| rule.severity() == LintSeverity::Error);
    assert_eq!(
        errors.map(ToString::to_string).collect::<Vec<_>>(),
        ["HeapFillsLimit", "UnreadableValue", "HeapTooSmall"]
    );
    assert_eq!(
        [LintSeverity::Warning, LintSeverity::Error].map(|severity| severity.to_string()),
        ["warning", "error"]
    );
}
