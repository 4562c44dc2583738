//! A list, object by object → what is known.

use std::time::Duration;

use tokio::time::timeout;

use super::Known;
use super::state::{Followed, WatchResult};
use crate::kubernetes::call::Call;
use crate::kubernetes::client::Pieces;
use crate::kubernetes::error::Problem;
use crate::kubernetes::object::Object;

/// An API server that does not go on with a list for so long does not know that it was asked for one.
const LIST_SILENCE: Duration = Duration::from_secs(20);

impl<T: Object> Known<T> {
    /// Takes in a list, object by object; returns its version and whether anything changed.
    pub(super) async fn take_list(&self, mut pieces: Pieces<'_>) -> Result<(String, bool), Problem> {
        let mut news = false;
        self.with(Followed::begin_list);
        while let Some(piece) = timeout(LIST_SILENCE, pieces.next())
            .await
            .map_err(|_| Problem::Timeout(LIST_SILENCE))??
        {
            news |= self.with(|known| known.list_object(&piece));
        }
        let version = Followed::<T>::version(pieces.envelope()?).map_err(Problem::Unreadable)?;
        news |= self.with(Followed::end_list);
        Ok((version, news))
    }

    /// Takes in the list at the beginning of a watch; returns its version and whether anything changed, or none if the API
    /// server does not tell it there.
    pub(super) async fn arrive(&self, pieces: &mut Pieces<'_>, call: &Call) -> Result<Option<(String, bool)>, Problem> {
        let mut changed = false;
        self.with(Followed::begin_list);
        loop {
            let Ok(line) = timeout(LIST_SILENCE, pieces.next()).await else {
                return Ok(None);
            };
            let cut_short = || Problem::Unreadable("the list ended before it was whole".to_owned());
            let line = line?.ok_or_else(cut_short)?;
            match self.with(|known| known.apply(&line, call))? {
                WatchResult::Change { news, .. } => changed |= news,
                WatchResult::ListEnd(version) => {
                    changed |= self.with(Followed::end_list);
                    return Ok(Some((version, changed)));
                }
                WatchResult::Bookmark(_) => return Ok(None),
            }
        }
    }
}
