//! Finding what changed.

use super::keys::align;
use super::{Patch, Piece};
use crate::value::{Map, Value};

/// What makes `new` from `base`.
pub fn diff(base: &Value, new: &Value) -> Patch {
    of("", base, new)
}

/// `field` is the name of the map field that holds both.
fn of(field: &str, base: &Value, new: &Value) -> Patch {
    match (base, new) {
        (Value::Map(base), Value::Map(new)) => fields(base, new),
        (Value::List(base), Value::List(new)) => elements(field, base, new),
        _ => Patch::Set(new.clone()),
    }
}

fn fields(base: &Map, new: &Map) -> Patch {
    let removed: Vec<_> = (base.keys())
        .filter(|field| !new.contains_key(field))
        .map(str::to_owned)
        .collect();
    let mut changed = Vec::new();
    for (field, value) in new {
        match base.get(field) {
            Some(old) if old == value => {}
            Some(old) => changed.push((field.to_owned(), of(field, old, value))),
            None => changed.push((field.to_owned(), Patch::Set(value.clone()))),
        }
    }
    // Nothing of the old map is left: the new one is the shorter way to say it.
    if !base.is_empty() && removed.len() == base.len() {
        return Patch::Set(Value::Map(new.clone()));
    }
    Patch::Fields { removed, changed }
}

fn elements(field: &str, base: &[Value], new: &[Value]) -> Patch {
    let origins = align(field, base, new).unwrap_or_else(|| by_place(base, new));
    let in_place = base.len() == new.len() && origins.iter().enumerate().all(|(at, from)| *from == Some(at));
    if in_place {
        let changed = base.iter().zip(new).enumerate().filter(|(_, (old, new))| old != new);
        return Patch::Elements(changed.map(|(at, (old, new))| (at, of("", old, new))).collect());
    }
    if origins.iter().all(Option::is_none) {
        return Patch::Set(Value::List(new.to_vec()));
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for (element, origin) in new.iter().zip(origins) {
        let piece = match origin {
            None => Piece::New(element.clone()),
            Some(from) if base[from] == *element => match pieces.last_mut() {
                Some(Piece::Keep { from: first, count }) if *first + *count == from => {
                    *count += 1;
                    continue;
                }
                _ => Piece::Keep { from, count: 1 },
            },
            Some(from) => Piece::Change { from, patch: of("", &base[from], element) },
        };
        pieces.push(piece);
    }
    Patch::Splice(pieces)
}

/// Elements without keys belong together by their place, counted from the front, and from the back where that fits
/// better: what was inserted or taken out in the middle moves the rest.
fn by_place(base: &[Value], new: &[Value]) -> Vec<Option<usize>> {
    let shorter = base.len().min(new.len());
    if base.len() == new.len() {
        return (0..new.len()).map(Some).collect();
    }
    let head = base.iter().zip(new).take_while(|(old, new)| old == new).count();
    let tail = base
        .iter()
        .rev()
        .zip(new.iter().rev())
        .take(shorter - head)
        .take_while(|(old, new)| old == new)
        .count();
    (0..new.len())
        .map(|at| {
            if at < head {
                Some(at)
            } else if at >= new.len() - tail {
                Some(base.len() - (new.len() - at))
            } else {
                (at < base.len() - tail).then_some(at)
            }
        })
        .collect()
}
