//! A map of fields that costs what is in it.
//!
//! Objects are trees of small maps, and a B-tree's node has room for eleven entries however few there are: a pod of
//! thirty maps took 20 KB a copy. A few fields are a sorted list without room to spare; many are a B-tree, so that no
//! number of fields in no order is slow to build.

use std::collections::{BTreeMap, btree_map};
use std::{fmt, mem, slice, vec};

use super::{Text, Value};

/// Fields that are kept as a list.
const FEW_MAX: usize = 32;

/// A map of fields, in the order of their names.
#[derive(Clone, Default)]
pub struct Map(Fields);

#[derive(Clone)]
enum Fields {
    /// Sorted by name, no name twice.
    Few(Box<[(Text, Value)]>),
    #[expect(
        clippy::box_collection,
        reason = "a map is no larger than a list without room to spare"
    )]
    Many(Box<BTreeMap<Text, Value>>),
}

impl Default for Fields {
    fn default() -> Self {
        Self::Few(Box::default())
    }
}

impl Map {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        match &self.0 {
            Fields::Few(list) => list.len(),
            Fields::Many(tree) => tree.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        match &self.0 {
            Fields::Few(list) => find(list, name).map(|at| &list[at].1),
            Fields::Many(tree) => tree.get(name),
        }
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        match &mut self.0 {
            Fields::Few(list) => find(list, name).map(|at| &mut list[at].1),
            Fields::Many(tree) => tree.get_mut(name),
        }
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Sets a field, and returns what it was.
    pub fn insert(&mut self, name: impl Into<Text>, value: Value) -> Option<Value> {
        let name = name.into();
        match self.room() {
            Fields::Few(list) => match place(list, &name) {
                Ok(at) => Some(mem::replace(&mut list[at].1, value)),
                Err(at) => {
                    put(list, at, (name, value));
                    None
                }
            },
            Fields::Many(tree) => tree.insert(name, value),
        }
    }

    /// The field, made by `make` when there is none.
    pub fn get_or_insert_with(&mut self, name: &str, make: impl FnOnce() -> Value) -> &mut Value {
        match self.room() {
            Fields::Few(list) => {
                let at = place(list, name).unwrap_or_else(|at| {
                    put(list, at, (name.into(), make()));
                    at
                });
                &mut list[at].1
            }
            Fields::Many(tree) => tree.entry(name.into()).or_insert_with(make),
        }
    }

    pub fn remove(&mut self, name: &str) -> Option<Value> {
        match &mut self.0 {
            Fields::Few(list) => {
                let at = find(list, name)?;
                let mut entries = mem::take(list).into_vec();
                let (_, value) = entries.remove(at);
                *list = entries.into_boxed_slice();
                Some(value)
            }
            Fields::Many(tree) => tree.remove(name),
        }
    }

    /// Keeps the fields of which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut Value) -> bool) {
        match &mut self.0 {
            Fields::Few(list) => {
                let mut entries = mem::take(list).into_vec();
                entries.retain_mut(|(name, value)| keep(name, value));
                *list = entries.into_boxed_slice();
            }
            Fields::Many(tree) => tree.retain(|name, value| keep(name, value)),
        }
    }

    pub fn iter(&self) -> Iter<'_> {
        match &self.0 {
            Fields::Few(list) => Iter::Few(list.iter()),
            Fields::Many(tree) => Iter::Many(tree.iter()),
        }
    }

    pub fn iter_mut(&mut self) -> IterMut<'_> {
        match &mut self.0 {
            Fields::Few(list) => IterMut::Few(list.iter_mut()),
            Fields::Many(tree) => IterMut::Many(tree.iter_mut()),
        }
    }

    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &str> + ExactSizeIterator + Clone {
        self.iter().map(|(name, _)| name)
    }

    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> + ExactSizeIterator + Clone {
        self.iter().map(|(_, value)| value)
    }

    pub fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Value> + ExactSizeIterator {
        self.iter_mut().map(|(_, value)| value)
    }

    /// The fields, in a form that has room for one more.
    fn room(&mut self) -> &mut Fields {
        if let Fields::Few(list) = &mut self.0
            && list.len() >= FEW_MAX
        {
            self.0 = Fields::Many(Box::new(mem::take(list).into_iter().collect()));
        }
        &mut self.0
    }
}

/// Where a name is: among a few, one look at each is faster than halving, for most differ in their length.
fn find(list: &[(Text, Value)], name: &str) -> Option<usize> {
    list.iter().position(|(known, _)| known.as_str() == name)
}

/// Where a name is in a sorted list, or belongs.
fn place(list: &[(Text, Value)], name: &str) -> Result<usize, usize> {
    // What is read comes in order.
    if list.last().is_none_or(|(last, _)| last.as_str() < name) {
        return Err(list.len());
    }
    list.binary_search_by(|(known, _)| known.as_str().cmp(name))
}

/// Puts an entry where it belongs.
fn put(list: &mut Box<[(Text, Value)]>, at: usize, entry: (Text, Value)) {
    let mut entries = mem::take(list).into_vec();
    entries.reserve_exact(1);
    entries.insert(at, entry);
    *list = entries.into_boxed_slice();
}

impl PartialEq for Map {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Into<Text>> Extend<(K, Value)> for Map {
    fn extend<I: IntoIterator<Item = (K, Value)>>(&mut self, fields: I) {
        for (name, value) in fields {
            self.insert(name, value);
        }
    }
}

impl<K: Into<Text>> FromIterator<(K, Value)> for Map {
    /// Of two fields of one name the last wins.
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(fields: I) -> Self {
        let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
        let list: Vec<(Text, Value)> = fields.collect();
        if list.len() <= FEW_MAX && list.is_sorted_by(|(one, _), (next, _)| one < next) {
            return Self(Fields::Few(list.into_boxed_slice()));
        }
        let mut map = Self::new();
        map.extend(list);
        map
    }
}

impl<K: Into<Text>, const N: usize> From<[(K, Value); N]> for Map {
    fn from(fields: [(K, Value); N]) -> Self {
        fields.into_iter().collect()
    }
}

impl<K: Into<Text>> From<BTreeMap<K, Value>> for Map {
    fn from(fields: BTreeMap<K, Value>) -> Self {
        fields.into_iter().collect()
    }
}

impl IntoIterator for Map {
    type Item = (Text, Value);
    type IntoIter = IntoIter;

    fn into_iter(self) -> IntoIter {
        match self.0 {
            Fields::Few(list) => IntoIter::Few(list.into_vec().into_iter()),
            Fields::Many(tree) => IntoIter::Many(tree.into_iter()),
        }
    }
}

impl<'a> IntoIterator for &'a Map {
    type Item = (&'a str, &'a Value);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &'a mut Map {
    type Item = (&'a str, &'a mut Value);
    type IntoIter = IterMut<'a>;

    fn into_iter(self) -> IterMut<'a> {
        self.iter_mut()
    }
}

/// The fields of a map.
#[derive(Debug, Clone)]
pub enum Iter<'a> {
    Few(slice::Iter<'a, (Text, Value)>),
    Many(btree_map::Iter<'a, Text, Value>),
}

/// The fields of a map, to be changed.
#[derive(Debug)]
pub enum IterMut<'a> {
    Few(slice::IterMut<'a, (Text, Value)>),
    Many(btree_map::IterMut<'a, Text, Value>),
}

/// The fields of a map, taken out of it.
#[derive(Debug)]
pub enum IntoIter {
    Few(vec::IntoIter<(Text, Value)>),
    Many(btree_map::IntoIter<Text, Value>),
}

/// The same for each of the three, but for how an item is made of what a list has and of what a tree has.
macro_rules! iterator {
    ($name:ty, $item:ty, $few:expr, $many:expr) => {
        impl<'a> Iterator for $name {
            type Item = $item;

            fn next(&mut self) -> Option<Self::Item> {
                match self {
                    Self::Few(fields) => fields.next().map($few),
                    Self::Many(fields) => fields.next().map($many),
                }
            }

            fn size_hint(&self) -> (usize, Option<usize>) {
                match self {
                    Self::Few(fields) => fields.size_hint(),
                    Self::Many(fields) => fields.size_hint(),
                }
            }
        }

        impl<'a> DoubleEndedIterator for $name {
            fn next_back(&mut self) -> Option<Self::Item> {
                match self {
                    Self::Few(fields) => fields.next_back().map($few),
                    Self::Many(fields) => fields.next_back().map($many),
                }
            }
        }

        impl<'a> ExactSizeIterator for $name {}
    };
}

iterator!(
    Iter<'a>,
    (&'a str, &'a Value),
    |(name, value)| (name.as_str(), value),
    |(name, value)| (name.as_str(), value)
);
iterator!(
    IterMut<'a>,
    (&'a str, &'a mut Value),
    |(name, value)| (name.as_str(), value),
    |(name, value)| (name.as_str(), value)
);
iterator!(IntoIter, (Text, Value), |field| field, |field| field);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_map_takes_what_is_in_it() {
        #[cfg(target_pointer_width = "64")]
        assert_eq!((size_of::<Text>(), size_of::<Map>(), size_of::<Value>()), (16, 16, 24));
        let mut map = Map::new();
        for count in 1..=FEW_MAX {
            map.insert(format!("{count:02}"), Value::Null);
            assert!(matches!(map.0, Fields::Few(_)), "{count} are few");
        }
        map.insert("one more", Value::Null);
        assert!(matches!(map.0, Fields::Many(_)));
        assert_eq!(map.len(), FEW_MAX + 1);
    }

    /// What is done to a map, with few names so that they meet.
    #[derive(Debug, Clone)]
    enum Step {
        Insert(u8, i64),
        Make(u8, i64),
        Remove(u8),
        Retain(i64),
        Double,
    }

    /// Some are in the dictionary, some are not.
    fn name(number: u8) -> String {
        const KNOWN: [&str; 6] = ["status", "metadata", "1", "app", "2", "True"];
        KNOWN
            .get(usize::from(number))
            .map_or_else(|| number.to_string(), |name| (*name).to_owned())
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..60_u8, 0..9_i64).prop_map(|(name, value)| Step::Insert(name, value)),
            2 => (0..60_u8, 0..9_i64).prop_map(|(name, value)| Step::Make(name, value)),
            2 => (0..60_u8).prop_map(Step::Remove),
            1 => (0..9_i64).prop_map(Step::Retain),
            1 => Just(Step::Double),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_sorted_map_of_any_size(steps in proptest::collection::vec(step(), 0..200)) {
            let mut map = Map::new();
            let mut model: BTreeMap<String, Value> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(number, value) => {
                        let (name, value) = (name(number), Value::I64(value));
                        prop_assert_eq!(map.insert(name.clone(), value.clone()), model.insert(name, value));
                    }
                    Step::Make(number, value) => {
                        let name = name(number);
                        let made = map.get_or_insert_with(&name, || Value::I64(value)).clone();
                        prop_assert_eq!(&made, model.entry(name).or_insert(Value::I64(value)));
                    }
                    Step::Remove(number) => {
                        let name = name(number);
                        prop_assert_eq!(map.remove(&name), model.remove(&name));
                    }
                    Step::Retain(least) => {
                        map.retain(|_, value| value.as_i64() >= Some(least));
                        model.retain(|_, value| value.as_i64() >= Some(least));
                    }
                    Step::Double => {
                        for value in map.values_mut().chain(model.values_mut()) {
                            *value = Value::I64(value.as_i64().unwrap_or(0) * 2 % 9);
                        }
                    }
                }
                let fields = || model.iter().map(|(name, value)| (name.as_str(), value));
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(fields()));
                prop_assert!(map.iter().rev().eq(fields().rev()));
                prop_assert!(model.keys().all(|name| map.contains_key(name) && map.get_mut(name).is_some()));
                // A map that was once large is the same as one that never was, or that was made in another order.
                prop_assert_eq!(&Map::from(model.clone()), &map);
                prop_assert_eq!(&model.clone().into_iter().rev().collect::<Map>(), &map);
                let taken = map.clone().into_iter().map(|(name, value)| (String::from(name), value));
                prop_assert!(taken.eq(model.clone()));
            }
        }
    }
}
