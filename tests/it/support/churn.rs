//! A process that takes memory and gives it back, again and again, as fast as it can.

/// The shell command for one that holds between `low` and `high` MiB at a time, chosen anew each time. What it gives back
/// goes back to the kernel at once.
pub(crate) fn command(low: u64, high: u64) -> String {
    let program = format!(
        "open(Z, \"<\", \"/dev/zero\") or die; while (1) {{ my $x; \
         sysread(Z, $x, ({low} + int(rand({high} - {low} + 1))) << 20); undef $x }}"
    );
    format!("MALLOC_MMAP_THRESHOLD_=131072 exec perl -e '{program}'")
}
