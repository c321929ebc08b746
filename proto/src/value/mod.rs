//! The value tree: what an object is while somebody works on it.
//!
//! It holds exactly what JSON and Kubernetes' own decoder can hold (plus bytes, for what never was JSON). A number has
//! one form: an integral number that fits is [`Value::I64`], above `i64::MAX` it is [`Value::U64`], everything else is
//! [`Value::F64`]. Build numbers with the `From` impls or [`Value::float`], never by naming a variant with a number
//! that belongs to another.

pub mod canonical;
pub mod json;
pub mod map;
mod text;

pub use map::Map;
pub use text::Text;

/// A tree of values.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    #[default]
    Null,
    Bool(bool),
    I64(i64),
    /// Only above `i64::MAX`.
    U64(u64),
    /// Finite, and only what no integer variant holds exactly.
    F64(f64),
    Text(Text),
    Bytes(Box<[u8]>),
    List(Vec<Self>),
    Map(Map),
}

impl Value {
    /// An empty map.
    pub fn map() -> Self {
        Self::Map(Map::new())
    }

    /// The value of a float in its one form; `None` for NaN and the infinities, which no object may hold.
    pub fn float(number: f64) -> Option<Self> {
        // 2^63 and 2^64 are exact as f64, so these comparisons are exact too.
        const TWO_63: f64 = 9_223_372_036_854_775_808.0;
        const TWO_64: f64 = 18_446_744_073_709_551_616.0;
        if !number.is_finite() {
            return None;
        }
        if number.fract() != 0.0 {
            return Some(Self::F64(number));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "integral and in range by the comparisons"
        )]
        Some(if (-TWO_63..TWO_63).contains(&number) {
            Self::I64(number as i64)
        } else if (TWO_63..TWO_64).contains(&number) {
            Self::U64(number as u64)
        } else {
            Self::F64(number)
        })
    }

    /// The field of a map; `None` when there is none or this is no map.
    pub fn get(&self, field: &str) -> Option<&Self> {
        self.as_map()?.get(field)
    }

    /// Follows a path of field names; list elements are named by their index.
    pub fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |value, step| match value {
            Self::Map(map) => map.get(step),
            Self::List(list) => list.get(step.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The text at a path.
    pub fn text_at(&self, path: &[&str]) -> Option<&str> {
        self.at(path)?.as_text()
    }

    /// The integer at a path.
    pub fn int_at(&self, path: &[&str]) -> Option<i64> {
        self.at(path)?.as_i64()
    }

    /// The flag at a path; false when it is absent, as Kubernetes' optional flags are.
    pub fn flag_at(&self, path: &[&str]) -> bool {
        self.at(path).and_then(Self::as_bool).unwrap_or(false)
    }

    /// The elements of the list at a path; none when it is absent.
    pub fn list_at(&self, path: &[&str]) -> &[Self] {
        self.at(path).and_then(Self::as_list).unwrap_or_default()
    }

    /// Sets what stands at a path of map fields, making the maps on the way. What is in the way and no map is replaced.
    pub fn set(&mut self, path: &[&str], value: impl Into<Self>) {
        let mut here = self;
        for step in path {
            if !matches!(here, Self::Map(_)) {
                *here = Self::map();
            }
            let Self::Map(map) = here else { return };
            here = map.get_or_insert_with(step, Self::default);
        }
        *here = value.into();
    }

    /// Takes away what stands at a path of map fields and returns it.
    pub fn remove(&mut self, path: &[&str]) -> Option<Self> {
        let (last, parents) = path.split_last()?;
        let mut here = self;
        for step in parents {
            here = here.as_map_mut()?.get_mut(step)?;
        }
        here.as_map_mut()?.remove(last)
    }

    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::I64(number) => Some(*number),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<&[Self]> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn as_list_mut(&mut self) -> Option<&mut Vec<Self>> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_map_mut(&mut self) -> Option<&mut Map> {
        match self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::I64(number)
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::I64(i64::from(number))
    }
}

impl From<i32> for Value {
    fn from(number: i32) -> Self {
        Self::I64(i64::from(number))
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        i64::try_from(number).map_or(Self::U64(number), Self::I64)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Vec<Self>> for Value {
    fn from(list: Vec<Self>) -> Self {
        Self::List(list)
    }
}

impl From<Map> for Value {
    fn from(map: Map) -> Self {
        Self::Map(map)
    }
}

impl<V: Into<Self>> FromIterator<V> for Value {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<K: Into<Text>, V: Into<Self>, const N: usize> From<[(K, V); N]> for Value {
    fn from(fields: [(K, V); N]) -> Self {
        Self::Map(fields.into_iter().map(|(name, value)| (name, value.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_float_has_one_form() {
        let check = |number: f64, value: Option<Value>| assert_eq!(Value::float(number), value, "{number}");
        check(1.0, Some(Value::I64(1)));
        check(-0.0, Some(Value::I64(0)));
        check(0.5, Some(Value::F64(0.5)));
        check(-9_223_372_036_854_775_808.0, Some(Value::I64(i64::MIN)));
        check(9_223_372_036_854_775_808.0, Some(Value::U64(1 << 63)));
        check(1e300, Some(Value::F64(1e300)));
        check(f64::NAN, None);
        check(f64::INFINITY, None);
    }

    #[test]
    fn paths_read_set_and_remove() {
        let mut pod = Value::map();
        pod.set(&["spec", "nodeName"], "a");
        assert_eq!(pod.text_at(&["spec", "nodeName"]), Some("a"));
        assert_eq!(pod.text_at(&["spec", "nodeName", "deeper"]), None);
        pod.set(&["spec", "containers"], Value::from_iter(["x", "y"]));
        assert_eq!(pod.text_at(&["spec", "containers", "1"]), Some("y"));
        assert_eq!(pod.list_at(&["spec", "volumes"]), &[]);
        assert_eq!(pod.remove(&["spec", "nodeName"]), Some(Value::from("a")));
        assert_eq!(pod.remove(&["status", "phase"]), None);
        assert!(!pod.flag_at(&["spec", "hostNetwork"]));
    }
}
