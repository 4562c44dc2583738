use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::render::{bar, draw};
use super::state::{Amounts, Node};
use super::view::View;
use crate::control::proto::{
    self, Agent, Change, Container, GetReply, Lease, Pod, Recommendation, Requirements, Usage,
};
use crate::model::Resource;

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
        prop_assert!(super::state::short(amounts.resource, values[0]).len() <= 8);
    }
}
