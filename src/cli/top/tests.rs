use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use serde_json::{Value, json};

use super::render::{bar, draw};
use super::state::{Amounts, Node};
use super::view::View;
use super::{Line, Sort, of_nodes, once};
use crate::cli::amount::short;
use crate::control::proto::{
    self, Agent, Change, Container, GetReply, Lease, OomKill, Pod, Recommendation, Requirements, Usage,
};
use crate::model::{OBSERVING, Resource};

fn list(cpu: &str, memory: &str) -> Option<proto::Amounts> {
    Some(proto::Amounts {
        cpu: Some(cpu.to_owned()),
        memory: Some(memory.to_owned()),
    })
}

fn usage(second: u64, milli: u64) -> Usage {
    Usage {
        read_at_us: second * 1_000_000,
        cpu_us: Some(second * milli * 1000),
        memory_bytes: 100 << 20,
        periods: second * 10,
        throttled_periods: second * 3,
        limits: list("500m", "128Mi"),
        throttled_us: 0,
        burst_percent: (milli > 1000).then_some(50),
    }
}

/// A pod of one container that used `milli` thousandths of a cpu in every second so far.
fn pod(name: &str, second: u64, milli: u64) -> Pod {
    let requirements = |cpu, memory| {
        Some(Requirements {
            requests: list(cpu, memory),
            limits: list("500m", "128Mi"),
        })
    };
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        state: "InSync".to_owned(),
        usage: Some(usage(second, milli)),
        containers: vec![Container {
            name: "app".to_owned(),
            id: Some(format!("id-{name}")),
            wanted: requirements("250m", "96Mi"),
            spec: requirements("200m", "64Mi"),
            usage: Some(usage(second, milli)),
            recommendation: Some(Recommendation {
                lower_bound: list("100m", "48Mi"),
                target: list("250m", "96Mi"),
                upper_bound: list("1", "1Gi"),
            }),
            ..Container::default()
        }],
        ..Pod::default()
    }
}

fn node(pods: impl Fn(u64) -> Vec<Pod>) -> Node {
    let mut node = Node::default();
    for second in [10, 12] {
        node.read(GetReply {
            agent: Some(Agent {
                version: "1.2.3".to_owned(),
                cgroup_version: "v2".to_owned(),
                ..Agent::default()
            }),
            pods: pods(second),
        });
    }
    node
}

fn screen(node: &Node, view: &View, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| assert!(draw(frame, node, view) > 0)).unwrap();
    let cells = terminal.backend().buffer().content().chunks(columns.into());
    let line = |cells: &[Cell]| cells.iter().map(Cell::symbol).collect::<String>();
    cells.map(|cells| line(cells).trim_end().to_owned() + "\n").collect()
}

fn press(view: &mut View, node: &Node, code: KeyCode) -> bool {
    view.press(KeyEvent::new(code, KeyModifiers::NONE), node, 10)
}

#[test]
fn rates_are_those_between_two_answers() {
    let node = node(|second| vec![pod("web", second, 120)]);
    let line = &node.lines[1];
    assert_eq!(line.cpu.values[0], Some(120));
    assert_eq!(line.throttled_percent, Some(30));
    let twice = self::node(|second| {
        let mut pod = pod("web", second, 120);
        pod.containers[0].usage.as_mut().unwrap().throttled_periods = second * 15;
        vec![pod]
    });
    let percent = twice.lines[1].throttled_percent;
    assert_eq!(percent, Some(100), "both of crun's cgroups were throttled");
    let json = serde_json::to_value(line).unwrap();
    assert_eq!(json["cpu"]["used"], "120m");
    assert_eq!(json["memory"]["limit"], "128Mi");
    assert_eq!(json["cpu"]["upperBound"], "1");
}

#[test]
fn only_enforced_limits_are_shown() {
    let node = node(|second| {
        let mut pod = pod("web", second, 120);
        (pod.usage, pod.containers[0].usage) = (None, None);
        vec![pod]
    });
    let line = &node.lines[1];
    assert_eq!((line.cpu.values[2], line.memory.values[2]), (None, None));
    assert_eq!(line.cpu.values[1], Some(200));
}

#[test]
fn a_restarted_container_has_no_rate_yet() {
    let node = node(|second| {
        let mut pod = pod("web", second, 120);
        pod.containers[0].id = Some(second.to_string());
        vec![pod]
    });
    assert_eq!(node.lines[1].cpu.values[0], None);
    assert_eq!(node.lines[0].cpu.values[0], Some(120));
}

#[test]
fn what_happens_to_a_pod_is_its_latest_change() {
    let mut node = node(|second| vec![pod("web", second, 120)]);
    node.add(&Change {
        at: "2026-01-31T12:00:00Z".to_owned(),
        uid: "web".to_owned(),
        outcome: "Applied".to_owned(),
        ..Change::default()
    });
    let (_, last) = node.lines[1].last.clone().unwrap();
    assert!(last.starts_with("2026-01-31T12:00:00Z  Applied"), "{last}");
    assert_eq!(node.news.len(), 1);
}

#[test]
fn keys_choose_what_is_shown() {
    let node = node(|second| vec![pod("a", second, 10), pod("b", second, 300)]);
    let mut view = View::default();
    let first = |view: &View| view.lines(&node)[0].full_name();
    assert_eq!(first(&view), "shop/a");
    press(&mut view, &node, KeyCode::Char('s'));
    assert_eq!(first(&view), "shop/b");
    for code in [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Enter] {
        assert!(press(&mut view, &node, code), "letters of a filter do nothing else");
    }
    assert!(view.lines(&node).is_empty());
    press(&mut view, &node, KeyCode::Down);
    press(&mut view, &node, KeyCode::Esc);
    press(&mut view, &node, KeyCode::End);
    assert_eq!(view.selected(&view.lines(&node)), 3);
    assert!(!press(&mut view, &node, KeyCode::Char('q')));
}

#[test]
fn a_temporary_limit_is_marked() {
    let node = node(|second| {
        let mut pod = pod("web", second, 120);
        pod.leases = vec![Lease {
            container: "app".to_owned(),
            resource: "memory".to_owned(),
            until: "2026-01-31T12:00:00Z".to_owned(),
            ..Lease::default()
        }];
        vec![pod]
    });
    let mut view = View::default();
    press(&mut view, &node, KeyCode::Down);
    let text = screen(&node, &view, 120, 30);
    assert!(
        text.contains("limit 128Mi (temporary) until 2026-01-31T12:00:00Z"),
        "{text}"
    );
    assert!(text.contains('!') && text.contains("1 temporary limits"), "{text}");
}

#[test]
fn names_that_would_change_the_terminal_do_not() {
    let hostile = format!("\u{1b}[2J\u{202e}\u{7}{}", "長".repeat(5000));
    let node = node(|second| vec![pod(&hostile, second, 120), pod("web", second, 5)]);
    for help in [false, true] {
        let mut view = View::default();
        if help {
            press(&mut view, &node, KeyCode::Char('?'));
        }
        for (columns, rows) in [(1, 1), (20, 5), (80, 24), (200, 60)] {
            let text = screen(&node, &view, columns, rows);
            let is_bad = |one: char| one != '\n' && one.is_control() || one == '\u{202e}';
            assert!(!text.contains(is_bad), "{text:?}");
        }
    }
}

#[test]
fn a_thousand_pods_are_drawn_as_far_as_they_fit() {
    let node = node(|second| {
        (0..1000)
            .map(|number| pod(&format!("pod-{number:04}"), second, number))
            .collect()
    });
    let mut view = View::default();
    press(&mut view, &node, KeyCode::End);
    let text = screen(&node, &view, 80, 24);
    assert!(
        text.contains("shop/pod-0999") && !text.contains("shop/pod-0001"),
        "{text}"
    );
    assert!(text.contains("1000 pods"), "{text}");
    assert!(screen(&node, &view, 20, 5).contains("app"));
}

proptest! {
    #[test]
    fn a_bar_is_as_wide_as_asked(values in proptest::array::uniform6(proptest::option::of(0_u64..=i64::MAX as u64)), width in 0_usize..60) {
        let amounts = Amounts {
            resource: Resource::Memory,
            values,
            temporary_until: None,
        };
        prop_assert_eq!(bar(&amounts, width).width(), width);
        prop_assert!(short(amounts.resource, values[0]).len() <= 8);
    }
}

/// The words of each line.
fn words(text: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().map(words).collect()
}

#[test]
fn amounts_are_shown_in_few_digits() {
    for (amount, cpu, memory) in [
        (0, "0m", "0"),
        (999, "999m", "999"),
        (1000, "1000m", "1000"),
        (1500, "1500m", "1.4Ki"),
        (99_900, "99900m", "97.5Ki"),
        (100_900, "100", "98.5Ki"),
        (2_500_000, "2.5k", "2.3Mi"),
        (1 << 30, "1073k", "1024Mi"),
        (11 << 30, "11811k", "11Gi"),
        (3 << 39, "1649267k", "1.5Ti"),
        (1 << 50, "1125899906k", "1Pi"),
        (1 << 60, "1152921504606k", "1Ei"),
    ] {
        assert_eq!(short(Resource::Cpu, Some(amount)), cpu);
        assert_eq!(short(Resource::Memory, Some(amount)), memory);
    }
    assert_eq!(short(Resource::Cpu, None), "-");
}

#[test]
fn each_number_has_its_column_and_field() {
    let node = node(|second| vec![pod("a", second, 120)]);
    let table = once(&View::default().lines(&node)).shown(false);
    assert_eq!(
        words(&table),
        [
            "POD CONTAINER RESOURCE USED REQUEST LIMIT TARGET BOUNDS THROTTLED",
            "shop/a - cpu 120m 200m 500m 250m - 30%",
            "memory 100Mi 64Mi 128Mi 96Mi -",
            "shop/a app cpu 120m 200m 500m 250m 100m..1000m 30%",
            "memory 100Mi 64Mi 128Mi 96Mi 48Mi..1024Mi",
        ]
    );
    assert_eq!(
        serde_json::to_value(&node.lines[1]).unwrap(),
        json!({
            "namespace": "shop", "name": "a", "container": "app", "workload": "", "state": "InSync", "detail": "",
            "cpu": {"used": "120m", "request": "200m", "limit": "500m", "target": "250m", "lowerBound": "100m", "upperBound": "1"},
            "memory": {"used": "100Mi", "request": "64Mi", "limit": "128Mi", "target": "96Mi", "lowerBound": "48Mi", "upperBound": "1Gi"},
            "throttledPercent": 30, "last": null,
        })
    );
}

#[test]
fn the_screen_shows_the_numbers_of_a_line() {
    let mut node = node(|second| vec![pod("web", second, 1500)]);
    let mut view = View::of("web");
    press(&mut view, &node, KeyCode::Down);
    let text = screen(&node, &view, 120, 30);
    for part in [
        "vscaled 1.2.3 · filter \"web\" · 1 pods · sorted by name · 1 throttled · 0 temporary limits · cgroup v2",
        "1500m/500m",
        "100Mi/128Mi",
        "shop/web app  InSync\n",
        "cpu     used 1500m  request 200m  target 250m  bounds 100m..1000m  limit 500m (burst 50%)\n",
        "memory  used 100Mi  request 64Mi  target 96Mi  bounds 48Mi..1024Mi  limit 128Mi\n",
        "changed nothing lately\n",
        "q quit  ? help",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    for (problem, shown) in [
        ("no runtime answers", "? help  degraded: no runtime answers\n"),
        (OBSERVING, OBSERVING),
    ] {
        node.agent.problems = vec![problem.to_owned()];
        let text = screen(&node, &view, 120, 30);
        assert!(text.contains(shown), "{text}");
        assert_eq!(text.contains("degraded"), problem != OBSERVING, "{text}");
    }
}

#[test]
fn each_order_has_its_number() {
    let mut node = node(|second| {
        let of = |name: &str, milli, memory: u64, throttled| {
            let mut pod = pod(name, second, milli);
            pod.usage.as_mut().unwrap().throttled_periods = 0;
            pod.usage.as_mut().unwrap().memory_bytes = memory;
            pod.containers[0].usage.as_mut().unwrap().throttled_periods = second * throttled;
            pod
        };
        vec![of("a", 10, 2, 1), of("b", 300, 1, 2), of("c", 20, 3, 0)]
    });
    for (uid, at) in [("b", "2026-01-31T12:00:00Z"), ("c", "2026-01-31T12:00:01Z")] {
        node.add(&Change {
            at: at.to_owned(),
            uid: uid.to_owned(),
            ..Change::default()
        });
    }
    let mut view = View::default();
    for (order, pods) in [
        ("name", "abc"),
        ("cpu", "bca"),
        ("memory", "cab"),
        ("throttling", "bac"),
        ("change", "cba"),
        ("name", "abc"),
    ] {
        assert_eq!(view.order(), order);
        let lines = view.lines(&node);
        let shown: String = lines
            .iter()
            .filter(|line| line.container.is_none())
            .map(|line| line.name.as_str())
            .collect();
        assert_eq!(shown, pods, "{order}");
        press(&mut view, &node, KeyCode::Char('s'));
    }
}

#[test]
fn keys_move_hide_and_filter() {
    let node = node(|second| (0..30).map(|number| pod(&format!("p{number:02}"), second, 1)).collect());
    let mut view = View::default();
    for (code, at) in [
        (KeyCode::PageDown, 10),
        (KeyCode::Char(' '), 20),
        (KeyCode::Down, 21),
        (KeyCode::Char('j'), 22),
        (KeyCode::Up, 21),
        (KeyCode::Char('k'), 20),
        (KeyCode::PageUp, 10),
        (KeyCode::Char('G'), 59),
        (KeyCode::Char('g'), 0),
        (KeyCode::End, 59),
        (KeyCode::Home, 0),
        (KeyCode::Up, 0),
    ] {
        assert!(press(&mut view, &node, code));
        assert_eq!(view.selected(&view.lines(&node)), at, "{code:?}");
    }
    for lines in [30, 60] {
        press(&mut view, &node, KeyCode::Char('c'));
        assert_eq!(view.lines(&node).len(), lines);
    }
    for code in [
        KeyCode::Char('/'),
        KeyCode::Char('p'),
        KeyCode::Char('1'),
        KeyCode::Backspace,
        KeyCode::Char('2'),
        KeyCode::Enter,
    ] {
        assert!(press(&mut view, &node, code));
    }
    assert_eq!(
        (view.filter.as_str(), view.types, view.lines(&node).len()),
        ("p2", false, 20)
    );
    press(&mut view, &node, KeyCode::Esc);
    assert_eq!(view.lines(&node).len(), 60);
    press(&mut view, &node, KeyCode::Char('h'));
    assert!(view.help);
    assert!(press(&mut view, &node, KeyCode::Char('q')));
    assert!(!view.help);
    for (letter, stays) in [('c', false), ('d', false), ('s', true)] {
        let key = KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL);
        assert_eq!(view.press(key, &node, 10), stays, "{letter}");
    }
    assert_eq!(view.order(), "name");
}

#[test]
fn earlier_changes_and_kills_stand_in_order_of_time() {
    let change = |at: &str| Change {
        at: at.to_owned(),
        cause: "a change".to_owned(),
        ..Change::default()
    };
    let kill = OomKill {
        time: "2026-01-31T12:00:01.5Z".to_owned(),
        ..OomKill::default()
    };
    let mut node = Node::default();
    node.add_latest(
        vec![change("2026-01-31T12:00:01Z"), change("2026-01-31T12:00:02Z")],
        vec![kill; 40],
    );
    let texts: Vec<String> = node.news.iter().map(ToString::to_string).collect();
    assert_eq!(texts.iter().filter(|text| text.contains("OOM kill")).count(), 31);
    assert!(texts[31].contains("a change"), "{texts:?}");
}

#[test]
fn the_news_keep_the_latest() {
    let mut node = node(|second| vec![pod("web", second, 5)]);
    for number in 0..40 {
        node.add(&Change {
            cause: format!("cause-{number}"),
            ..Change::default()
        });
    }
    assert_eq!(node.news.len(), 32);
    let text = |at: usize| {
        node.news[at]
            .spans
            .iter()
            .map(|span| span.content.as_ref())
            .collect::<String>()
    };
    assert!(
        text(0).contains("cause-8") && text(31).contains("cause-39"),
        "{}",
        text(0)
    );
}

#[test]
fn each_mark_of_a_bar_has_its_place() {
    let drawn = |values, temporary: bool| {
        let amounts = Amounts {
            resource: Resource::Cpu,
            values,
            temporary_until: temporary.then(String::new),
        };
        let bar = bar(&amounts, 10);
        let text: String = bar.spans.iter().map(|span| span.content.as_ref()).collect();
        (text, bar.spans[0].style.fg)
    };
    let all = [50, 30, 100, 70, 10, 80].map(Some);
    assert_eq!(drawn(all, false).0, "█[█r█··t]|");
    assert_eq!(drawn(all, true).0, "█[█r█··t]!");
    assert_eq!(drawn([None; 6], false).0, " ".repeat(10));
    let used = |used| drawn([Some(used), None, Some(100), None, None, None], false);
    assert_eq!(used(1).0, "█········|");
    for (amount, colour) in [
        (79, Color::Green),
        (80, Color::Yellow),
        (94, Color::Yellow),
        (95, Color::Red),
    ] {
        assert_eq!(used(amount).1, Some(colour), "{amount}");
    }
}

#[test]
fn nodes_are_sorted_by_each_number() {
    let line = |node: &str, mut fields: Value| -> (String, Line) {
        fields["namespace"] = json!("shop");
        fields["name"] = json!(format!("web-{node}"));
        (node.to_owned(), serde_json::from_value(fields).unwrap())
    };
    let throttled = |percent: u64| json!({"container": "app", "throttledPercent": percent});
    let lines = vec![
        line(
            "b",
            json!({"cpu": {"used": "1", "request": "2", "limit": "3"}, "memory": {"used": "1Gi", "request": "2Gi", "limit": "3Gi"}}),
        ),
        line("b", throttled(5)),
        line("a", json!({"cpu": {"used": "500m"}, "memory": {"used": "4Gi"}})),
        line("a", throttled(40)),
        line("c", json!({"cpu": {"used": "250m"}, "memory": {"used": "2Gi"}})),
        line("c", throttled(50)),
    ];
    let shown = |sort, rows| words(&of_nodes(&lines, sort, rows).shown(false));
    for (sort, order) in [
        (Sort::Cpu, "bac"),
        (Sort::Memory, "acb"),
        (Sort::Throttling, "cab"),
        (Sort::Name, "abc"),
    ] {
        let nodes: String = shown(sort, 9)[1..4].iter().map(|line| &line[..1]).collect();
        assert_eq!(nodes, order, "{sort:?}");
    }
    assert_eq!(shown(Sort::Cpu, 9)[1], "b 1 1000m 2000m 3000m 1024Mi 2048Mi 3072Mi 5%");
    // Two tables, each with its header, and an empty line between them.
    assert_eq!((shown(Sort::Cpu, 2).len(), shown(Sort::Cpu, 9).len()), (7, 9));
}
