//! A process that takes memory, holds it for a moment and gives it back, again and again.

/// The shell command for one that holds between `low` and `high` MiB at a time, chosen anew each time. What it gives back
/// goes back to the kernel at once.
pub(crate) fn command(low: u64, high: u64) -> String {
    let program = format!(
        "open(Z, \"<\", \"/dev/zero\") or die; while (1) {{ my $x; \
         sysread(Z, $x, ({low} + int(rand({high} - {low} + 1))) << 20); \
         select(undef, undef, undef, 0.002); undef $x }}"
    );
    format!("MALLOC_MMAP_THRESHOLD_=131072 exec perl -e '{program}'")
}
