use super::*;
use proptest::prelude::*;

#[test]
fn files_read_and_print_in_the_kernels_words() {
    let cases = [
        (ControlFile::CpuMax, "max 100000"),
        (ControlFile::CpuMax, "20000 100000"),
        (ControlFile::CpuMaxBurst, "0"),
        (ControlFile::CpuWeight, "39"),
        (ControlFile::MemoryHigh, "942080"),
        (ControlFile::MemoryMax, "max"),
        (ControlFile::MemoryMax, "134217728"),
        (ControlFile::MemoryMin, "0"),
        (ControlFile::MemoryLow, "67108864"),
        (ControlFile::CpuShares, "1024"),
        (ControlFile::CfsQuota, "-1"),
        (ControlFile::CfsQuota, "17500"),
        (ControlFile::CfsPeriod, "100000"),
        (ControlFile::CfsBurst, "8750"),
        (ControlFile::MemoryLimit, "9223372036854771712"),
        (ControlFile::MemswLimit, "134217728"),
    ];
    for (file, text) in cases {
        let read = Setting::parse(file, &format!("{text}\n")).unwrap();
        assert_eq!((read.file(), read.to_string().as_str()), (file, text));
    }
}

#[test]
fn no_bound_is_written_as_minus_one_on_v1() {
    let unbounded = Setting::parse(ControlFile::MemoryLimit, "9223372036854771712").unwrap();
    assert_eq!(unbounded.to_write(), "-1");
    assert_eq!(unbounded, Setting::MemoryLimit(MemoryLimit::Max));
}

#[test]
fn a_limit_is_kept_in_whole_pages() {
    let kept = |bytes| Setting::MemoryMax(MemoryLimit::Bytes(bytes)).in_pages(PageSize::KIB_4);
    let read = Setting::MemoryMax(MemoryLimit::Bytes(19_996_672));
    assert_eq!(kept(20_000_001), read);
    assert_ne!(kept(20_004_864), read);
}

#[test]
fn each_files_memory_is_kept_in_pages() {
    let files: [fn(MemoryLimit) -> Setting; 6] = [
        Setting::MemoryHigh,
        Setting::MemoryMax,
        Setting::MemoryMin,
        Setting::MemoryLow,
        Setting::MemoryLimit,
        Setting::MemswLimit,
    ];
    for file in files {
        let [wanted, kept] = [20_000_001, 19_996_672].map(|bytes| file(MemoryLimit::Bytes(bytes)));
        assert_eq!(wanted.in_pages(PageSize::KIB_4), kept);
    }
}

proptest! {
    #[test]
    fn garbage_is_an_error_that_quotes_it(text in "[a-z]{4,}") {
        for file in ControlFile::V2.iter().chain(ControlFile::V1).copied() {
            let error = Setting::parse(file, &text).unwrap_err();
            prop_assert_eq!(&error.text, &text);
        }
    }

    #[test]
    fn what_is_written_is_what_is_read(bytes in 0_u64..=u64::MAX, quota in 1000_u64..1_000_000_000) {
        let memory = Setting::MemoryLimit(MemoryLimit::Bytes(bytes)).in_pages(PageSize::KIB_16);
        prop_assert_eq!(Setting::parse(ControlFile::MemoryLimit, &memory.to_write()).unwrap(), memory);
        let max = Setting::CpuMax(CpuMax { quota: CpuQuota::Micros(quota), period_us: 100_000 });
        prop_assert_eq!(Setting::parse(ControlFile::CpuMax, &max.to_write()).unwrap(), max);
    }
}

#[test]
fn a_further_field_of_a_quota_is_passed_over() {
    let read = |text| Setting::parse(ControlFile::CpuMax, text).map(|setting| setting.to_string());
    assert_eq!(read("20000 100000 5000\n").unwrap(), "20000 100000");
    assert_eq!(read("max 100000 0").unwrap(), "max 100000");
    assert!(read("20000 x 5000").is_err() && read("20000").is_err());
}

#[test]
fn each_kind_of_value_is_told_apart() {
    let parsed = |file: &str, text: &str| Setting::parse(ControlFile::named(file).unwrap(), text).unwrap();
    let bytes = |bytes| Some(MemoryLimit::Bytes(bytes));
    // Burst, reservation, quota and memory limit, and whether nothing set the file.
    for (file, text, burst, reserved, quota, memory, unset) in [
        ("cpu.max", "5 9", None, None, Some(CpuQuota::Micros(5)), None, false),
        ("cpu.cfs_quota_us", "-1", None, None, Some(CpuQuota::Max), None, false),
        ("cpu.cfs_period_us", "5", None, None, None, None, false),
        ("cpu.max.burst", "5", Some(5), None, None, None, false),
        ("cpu.max.burst", "0", Some(0), None, None, None, true),
        ("cpu.cfs_burst_us", "0", Some(0), None, None, None, true),
        ("memory.min", "5", None, bytes(5), None, None, false),
        ("memory.low", "0", None, bytes(0), None, None, true),
        ("memory.high", "max", None, None, None, None, true),
        ("memory.high", "5", None, None, None, None, false),
        ("memory.max", "5", None, None, None, bytes(5), false),
        ("memory.max", "max", None, None, None, Some(MemoryLimit::Max), false),
        ("memory.limit_in_bytes", "5", None, None, None, bytes(5), false),
        ("memory.memsw.limit_in_bytes", "5", None, None, None, bytes(5), false),
        ("cpu.weight", "5", None, None, None, None, false),
    ] {
        let setting = parsed(file, text);
        assert_eq!(
            (
                setting.burst_us(),
                setting.reserved(),
                setting.quota(),
                setting.memory(),
                setting.is_unset()
            ),
            (burst, reserved, quota, memory, unset),
            "{file} {text}"
        );
        let resource = if file.starts_with("cpu") {
            Resource::Cpu
        } else {
            Resource::Memory
        };
        assert_eq!(setting.file().resource(), resource, "{file}");
        assert_eq!(
            setting.map_burst(|burst| burst + 1).burst_us(),
            burst.map(|burst| burst + 1)
        );
    }
    assert_eq!(ControlFile::named("memory.swap.max"), None);
}

#[test]
fn limits_are_found_in_both_versions() {
    let of = |files: &[(&str, &str)]| -> Settings {
        let parsed = |(file, text): &(&str, &str)| Setting::parse(ControlFile::named(file).unwrap(), text).unwrap();
        files.iter().map(parsed).collect()
    };
    let v2 = of(&[
        ("cpu.max", "5 9"),
        ("cpu.max.burst", "3"),
        ("memory.high", "1"),
        ("memory.max", "4096"),
    ]);
    let v1 = of(&[
        ("cpu.cfs_quota_us", "5"),
        ("cpu.cfs_period_us", "9"),
        ("cpu.cfs_burst_us", "3"),
        ("memory.limit_in_bytes", "4096"),
        ("memory.memsw.limit_in_bytes", "1"),
    ]);
    for settings in [v2, v1] {
        assert_eq!(settings.cpu_max().unwrap().to_string(), "5 9");
        assert_eq!(settings.burst().and_then(Setting::burst_us), Some(3));
        assert_eq!(settings.memory_bytes(), Some(Bytes::new(4096)));
    }
    let half = of(&[("cpu.cfs_quota_us", "5"), ("memory.max", "max")]);
    assert_eq!((half.cpu_max(), half.burst(), half.memory_bytes()), (None, None, None));
    assert_eq!(half.memory_limit(), Some(MemoryLimit::Max));
}
