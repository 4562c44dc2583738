//! Many kills at once, in cgroups with the numbers of their processes. Only the first ten have a report.

use super::{Kill, elsewhere, unexplained};

/// The number of reports that the kernel logs in five seconds.
const REPORTS: usize = 10;

#[rustfmt::skip]
const FIFTY: [(u32, &str); 50] = [
    (8621, "b19"), (8622, "b20"), (8623, "b21"), (8603, "b01"), (8604, "b02"),
    (8602, "b00"), (8620, "b18"), (8618, "b16"), (8619, "b17"), (8605, "b03"),
    (8624, "b22"), (8607, "b05"), (8625, "b23"), (8606, "b04"), (8629, "b25"),
    (8636, "b30"), (8628, "b24"), (8608, "b06"), (8638, "b32"), (8634, "b28"),
    (8637, "b31"), (8609, "b07"), (8639, "b33"), (8640, "b34"), (8610, "b08"),
    (8650, "b44"), (8611, "b09"), (8642, "b36"), (8641, "b35"), (8645, "b39"),
    (8612, "b10"), (8644, "b38"), (8643, "b37"), (8649, "b43"), (8648, "b42"),
    (8613, "b11"), (8646, "b40"), (8653, "b47"), (8651, "b45"), (8614, "b12"),
    (8647, "b41"), (8652, "b46"), (8615, "b13"), (8616, "b14"), (8617, "b15"),
    (8635, "b29"), (8633, "b27"), (8630, "b26"), (8654, "b48"), (8655, "b49"),
];

#[rustfmt::skip]
const THIRTY: [(u32, &str); 30] = [
    (164, "b02"), (163, "b01"), (166, "b04"), (177, "b15"), (174, "b12"),
    (169, "b07"), (168, "b06"), (171, "b09"), (162, "b00"), (170, "b08"),
    (178, "b16"), (172, "b10"), (173, "b11"), (179, "b17"), (167, "b05"),
    (180, "b18"), (165, "b03"), (182, "b20"), (186, "b24"), (188, "b26"),
    (176, "b14"), (184, "b22"), (189, "b27"), (181, "b19"), (191, "b29"),
    (185, "b23"), (190, "b28"), (175, "b13"), (183, "b21"), (187, "b25"),
];

pub(super) fn fifty() -> Vec<Kill> {
    burst(&FIFTY, |number| format!("/oomlab/kubepods/pod{number}/ctr{number}"))
}

pub(super) fn thirty() -> Vec<Kill> {
    burst(&THIRTY, |number| format!("/oomlab/burst.slice/c{number}"))
}

fn burst(kills: &[(u32, &'static str)], cgroup: impl Fn(&str) -> String) -> Vec<Kill> {
    let reported = kills[..REPORTS]
        .iter()
        .map(|(pid, comm)| elsewhere(*pid, comm, &cgroup(&comm[1..])));
    reported
        .chain(kills[REPORTS..].iter().map(|(pid, comm)| unexplained(*pid, comm)))
        .collect()
}
