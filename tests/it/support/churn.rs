//! A process that allocates memory, holds it for a moment and frees it, again and again.

/// A shell command that holds between `low` and `high` MiB, with a new amount each time. Freed memory returns to the
/// kernel at once.
pub(crate) fn command(low: u64, high: u64) -> String {
    taking(&format!("{low} + int(rand({high} - {low} + 1))"), "0.002")
}

/// Like [`command`], with the highest amount every other time, and for long enough that it is seen on a slow machine, too.
pub(crate) fn peaking(low: u64, high: u64) -> String {
    taking(&format!("{low} + int(rand({high} - {low} + 1)), {high}"), "0.02")
}

/// Holds each of these amounts for so many seconds.
fn taking(amounts: &str, seconds: &str) -> String {
    let program = format!(
        "open(Z, \"<\", \"/dev/zero\") or die; while (1) {{ for my $take ({amounts}) {{ my $x; \
         sysread(Z, $x, $take << 20); select(undef, undef, undef, {seconds}); undef $x }} }}"
    );
    format!("MALLOC_MMAP_THRESHOLD_=131072 exec perl -e '{program}'")
}
