//! A process that allocates memory, holds it for a moment and frees it, again and again.

/// A shell command that holds between `low` and `high` MiB, with a new amount each time. Freed memory returns to the
/// kernel at once.
pub(crate) fn command(low: u64, high: u64) -> String {
    let program = format!(
        "open(Z, \"<\", \"/dev/zero\") or die; while (1) {{ my $x; \
         sysread(Z, $x, ({low} + int(rand({high} - {low} + 1))) << 20); \
         select(undef, undef, undef, 0.002); undef $x }}"
    );
    format!("MALLOC_MMAP_THRESHOLD_=131072 exec perl -e '{program}'")
}
