//! An object that several views of the node share.

use std::ops::DerefMut;
use std::sync::Arc;

/// An object that is not copied with the views that hold it. A change of a shared object copies it first.
#[derive(Debug, Clone, PartialEq, Eq, Default, derive_more::From, derive_more::Deref)]
pub struct Shared<T>(#[deref(forward)] Arc<T>);

impl<T> From<T> for Shared<T> {
    fn from(object: T) -> Self {
        Self(Arc::new(object))
    }
}

impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}
