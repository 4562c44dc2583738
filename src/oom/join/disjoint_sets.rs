//! Things that hang together, directly or through others (disjoint sets: Tarjan, 1975). Pure.

/// Numbered things, each in one group.
#[derive(Debug)]
pub(super) struct DisjointSets {
    /// Another of the same group; itself, for the one that stands for all of it.
    towards: Vec<usize>,
}

impl DisjointSets {
    pub(super) fn new(count: usize) -> Self {
        Self {
            towards: (0..count).collect(),
        }
    }

    /// The one that stands for the group of this one.
    pub(super) fn of(&mut self, mut one: usize) -> usize {
        while self.towards[one] != one {
            let next = self.towards[one];
            self.towards[one] = self.towards[next];
            one = next;
        }
        one
    }

    /// Makes one group of the groups of these two.
    pub(super) fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.of(one), self.of(other));
        self.towards[other] = one;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_together_through_others_is_one_group() {
        let mut groups = DisjointSets::new(5);
        for (one, other) in [(0, 3), (1, 4), (3, 4)] {
            groups.join(one, other);
        }
        let found: Vec<usize> = (0..5).map(|one| groups.of(one)).collect();
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(one, of)| (*of == groups.of(0)) == (one != 2))
        );
    }
}
