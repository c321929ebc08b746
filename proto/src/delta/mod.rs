//! What changed between two trees, and its coding on the wire.
//!
//! [`diff()`] and [`Patch::apply`] are inverse: `apply(diff(a, b), a) == b` for all trees. A patch names no merge keys:
//! they only help [`diff()`] to find which elements belong together, so both ends may know different ones.

mod diff;
mod keys;
mod wire;

#[cfg(test)]
mod tests;

pub use diff::diff;
pub use wire::{decode_patch, decode_value, encode_patch, encode_value};

use crate::value::canonical::CanonicalError;
use crate::value::{Map, Value};

/// How to make one tree from another.
#[derive(Debug, Clone, PartialEq)]
pub enum Patch {
    /// The new tree itself. A null here is a null in the tree; a field goes away through `removed`.
    Set(Value),
    /// Fields of a map: those that go, those that change or come.
    Fields { removed: Vec<String>, changed: Vec<(String, Self)> },
    /// Elements of a list that keeps its length and order, by index, ascending.
    Elements(Vec<(usize, Self)>),
    /// A list put together anew from pieces of the old one.
    Splice(Vec<Piece>),
}

/// A piece of a new list.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// `count` elements of the old list from `from` on, as they were.
    Keep { from: usize, count: usize },
    /// An element of the old list, changed.
    Change { from: usize, patch: Patch },
    /// An element that was not there.
    New(Value),
}

/// A patch that does not belong to the tree at hand, or bytes that are no patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    #[error("the patch changes fields of what is no map")]
    NotMap,
    #[error("the patch changes elements of what is no list")]
    NotList,
    #[error("the patch takes away or changes a field that is not there")]
    NoField,
    #[error("the patch names an element that is not there")]
    NoElement,
    #[error("the patch uses one old element twice")]
    Twice,
    #[error("the coding refers to a text that it did not introduce")]
    NoText,
    #[error("reading the coding")]
    Coding(#[from] CanonicalError),
}

impl Patch {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Fields { removed, changed } => removed.is_empty() && changed.is_empty(),
            Self::Elements(changed) => changed.is_empty(),
            Self::Set(_) | Self::Splice(_) => false,
        }
    }

    /// Makes the new tree from the old one.
    pub fn apply(&self, base: &Value) -> Result<Value, DeltaError> {
        match self {
            Self::Set(value) => Ok(value.clone()),
            Self::Fields { removed, changed } => {
                let mut map = base.as_map().ok_or(DeltaError::NotMap)?.clone();
                fields(&mut map, removed, changed)?;
                Ok(Value::Map(map))
            }
            Self::Elements(changed) => {
                let mut list = base.as_list().ok_or(DeltaError::NotList)?.to_vec();
                for (index, patch) in changed {
                    let element = list.get_mut(*index).ok_or(DeltaError::NoElement)?;
                    *element = patch.apply(element)?;
                }
                Ok(Value::List(list))
            }
            Self::Splice(pieces) => splice(base.as_list().ok_or(DeltaError::NotList)?, pieces),
        }
    }
}

fn fields(map: &mut Map, removed: &[String], changed: &[(String, Patch)]) -> Result<(), DeltaError> {
    for field in removed {
        map.remove(field).ok_or(DeltaError::NoField)?;
    }
    for (field, patch) in changed {
        let value = match (patch, map.get(field)) {
            (Patch::Set(value), _) => value.clone(),
            (patch, Some(old)) => patch.apply(old)?,
            (_, None) => return Err(DeltaError::NoField),
        };
        map.insert(field, value);
    }
    Ok(())
}

/// No old element is used twice: a patch cannot make a tree larger than its base and itself together, so a few bytes
/// cannot ask for gigabytes.
fn splice(base: &[Value], pieces: &[Piece]) -> Result<Value, DeltaError> {
    let mut used = vec![false; base.len()];
    let mut list = Vec::new();
    for piece in pieces {
        let (from, count) = match piece {
            Piece::Keep { from, count } => (*from, *count),
            Piece::Change { from, .. } => (*from, 1),
            Piece::New(value) => {
                list.push(value.clone());
                continue;
            }
        };
        let end = from.checked_add(count).ok_or(DeltaError::NoElement)?;
        let old = base.get(from..end).ok_or(DeltaError::NoElement)?;
        for used in &mut used[from..end] {
            if std::mem::replace(used, true) {
                return Err(DeltaError::Twice);
            }
        }
        match piece {
            Piece::Change { patch, .. } => list.push(patch.apply(&old[0])?),
            Piece::Keep { .. } | Piece::New(_) => list.extend_from_slice(old),
        }
    }
    Ok(Value::List(list))
}
