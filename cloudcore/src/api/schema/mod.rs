//! The field facts of every kind: what a body may hold, how it travels as protobuf, how patches merge it.
//!
//! The facts are `types.txt`, made by `cloudcore/schema/generate`: a line `!group version Kind type` per kind, then per
//! type a line `=type`, and per field `name tag code flags…`. A code is a scalar's letter ([`Scalar`]) or `@type`, after
//! `[` for a list of it or `{` for a map to it. The text is linked in and indexed once, on first use; every name in the
//! index is a slice of it. A type whose Go form spells out another struct holds that one's fields itself (tag 0) and
//! keeps the tag under which they travel (`<type tag`).

use std::collections::BTreeMap;
use std::sync::OnceLock;

/// One kind of object.
#[derive(Debug)]
pub struct KindSchema {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    root: TypeId,
}

/// One type: a map with known fields.
#[derive(Debug)]
pub struct Type {
    /// Its Go name with its package, like `core.v1.PodSpec`.
    pub full_name: &'static str,
    /// It is the whole of some kind and so has `apiVersion` and `kind`.
    pub object: bool,
    /// By name.
    fields: Vec<Field>,
    /// (tag, index of the field), by tag.
    tags: Vec<(u32, u16)>,
    /// (tag, type) of structs whose fields stand in this type's own map.
    spelled_out: Vec<(u32, TypeId)>,
}

/// One field of a type.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// Its protobuf tag; 0 where it travels inside another message.
    pub tag: u32,
    pub shape: Shape,
    pub presence: Presence,
    /// Strategic merge joins this list: by this key, or, when the key is empty, as a set of scalars.
    pub merge_key: Option<&'static str>,
    /// A strategic merge patch may name the keys that stay.
    pub retain_keys: bool,
    /// The field as a whole has one owner.
    pub atomic: bool,
    /// A list of distinct scalars.
    pub set: bool,
    /// The keys that identify an element of a list.
    list_keys: &'static str,
    /// As protobuf the list is a message with one repeated field.
    pub wrapped: bool,
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    One(Element),
    List(Element),
    Map(Element),
}

/// What a field, an element of a list or a value of a map is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    Scalar(Scalar),
    Message(TypeId),
}

/// What is no message, and its letter in the facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// `s`
    Text,
    /// `b`
    Bool,
    /// `i`
    Int32,
    /// `l`
    Int64,
    /// `d`
    Float,
    /// `y`, base64 in JSON.
    Bytes,
    /// `q`
    Quantity,
    /// `o`
    IntOrText,
    /// `t`, whole seconds.
    Time,
    /// `u`, microseconds.
    MicroTime,
    /// `j`, any JSON.
    Any,
    /// `w`, a list of texts that is a message of its own as protobuf.
    Texts,
}

/// What a field that holds its zero looks like in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Left out.
    Omitted,
    /// Kept when somebody set it, else left out.
    Kept,
    /// Always written, as the zero of its type.
    Always,
    /// Always written, as null.
    Null,
}

/// A type's place in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypeId(u16);

impl KindSchema {
    pub fn root(&self) -> &'static Type {
        self.root.get()
    }

    /// `v1` for the core group, `group/version` for every other.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

impl TypeId {
    pub fn get(self) -> &'static Type {
        &index().types[usize::from(self.0)]
    }
}

impl Type {
    /// Its Go name without its package.
    pub fn name(&self) -> &'static str {
        self.full_name.rsplit_once('.').map_or(self.full_name, |(_, name)| name)
    }

    /// Version and name, as Go's decoder says it: `v1.PodSpec`.
    pub fn go_name(&self) -> &'static str {
        self.full_name.split_once('.').map_or(self.full_name, |(_, name)| name)
    }

    /// By name.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|field| field.name.cmp(name)).ok()?;
        self.fields.get(at)
    }

    pub fn field_by_tag(&self, tag: u32) -> Option<&Field> {
        let at = self.tags.binary_search_by_key(&tag, |(tag, _)| *tag).ok()?;
        self.fields.get(usize::from(self.tags[at].1))
    }

    /// The type whose fields travel under a tag and stand in this type's map.
    pub fn spelled_out_by_tag(&self, tag: u32) -> Option<&'static Self> {
        let (_, id) = self.spelled_out.iter().find(|(one, _)| *one == tag)?;
        Some(id.get())
    }
}

impl Field {
    /// The keys that identify an element of a list; none for a list without such.
    pub fn list_keys(&self) -> impl Iterator<Item = &'static str> {
        self.list_keys.split(',').filter(|key| !key.is_empty())
    }

    /// The type of the message, of the elements or of the values; `None` where they are scalars.
    pub fn message(&self) -> Option<&'static Type> {
        match self.shape {
            Shape::One(Element::Message(id)) | Shape::List(Element::Message(id)) | Shape::Map(Element::Message(id)) => {
                Some(id.get())
            }
            Shape::One(Element::Scalar(_)) | Shape::List(Element::Scalar(_)) | Shape::Map(Element::Scalar(_)) => None,
        }
    }
}

/// The schema of a kind.
pub fn kind(group: &str, version: &str, kind: &str) -> Option<&'static KindSchema> {
    index()
        .kinds
        .iter()
        .find(|one| one.kind == kind && one.group == group && one.version == version)
}

/// The schema of a kind by its `apiVersion`.
pub fn kind_of(api_version: &str, name: &str) -> Option<&'static KindSchema> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    kind(group, version, name)
}

#[derive(Debug)]
struct Index {
    kinds: Vec<KindSchema>,
    types: Vec<Type>,
}

fn index() -> &'static Index {
    static INDEX: OnceLock<Index> = OnceLock::new();
    INDEX.get_or_init(|| Index::read(include_str!("types.txt")))
}

impl Index {
    /// Reads the facts. They are part of the program, so what they cannot say is a programmer's error.
    fn read(facts: &'static str) -> Self {
        let names = facts.lines().filter_map(|line| line.strip_prefix('='));
        let places: BTreeMap<&str, u16> = names.zip(0..).collect();
        let find = |name: &str| {
            let at = places.get(name).copied();
            TypeId(at.unwrap_or_else(|| panic!("the facts name the type {name} and do not describe it")))
        };
        let (mut kinds, mut types) = (Vec::<KindSchema>::new(), Vec::<Type>::with_capacity(places.len()));
        for line in facts.lines() {
            if let Some(kind) = line.strip_prefix('!') {
                let mut words = kind.split(' ');
                let mut word = || words.next().unwrap_or_default();
                let (group, version, kind, root) = (word(), word(), word(), word());
                kinds.push(KindSchema {
                    group: if group == "-" { "" } else { group },
                    version,
                    kind,
                    root: find(root),
                });
            } else if let Some(full_name) = line.strip_prefix('=') {
                types.push(Type {
                    full_name,
                    object: false,
                    fields: Vec::new(),
                    tags: Vec::new(),
                    spelled_out: Vec::new(),
                });
            } else if let Some(last) = types.last_mut() {
                if let Some(spelled) = line.strip_prefix('<') {
                    let (name, tag) = spelled.split_once(' ').unwrap_or((spelled, ""));
                    last.spelled_out.push((number(tag), find(name)));
                } else {
                    last.fields.push(Field::read(line, &find));
                }
            }
        }
        for one in &mut types {
            one.fields.sort_by_key(|field| field.name);
            one.fields.shrink_to_fit();
            one.tags = (0..).zip(&one.fields).map(|(at, field)| (field.tag, at)).collect();
            one.tags.retain(|(tag, _)| *tag != 0);
            one.tags.sort_unstable();
        }
        for kind in &kinds {
            types[usize::from(kind.root.0)].object = true;
        }
        Self { kinds, types }
    }
}

impl Field {
    fn read(line: &'static str, find: &impl Fn(&str) -> TypeId) -> Self {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap_or_default();
        let (name, tag, code) = (word(), word(), word());
        let shape = match code.split_at_checked(1) {
            Some(("[", of)) => Shape::List(Element::read(of, find)),
            Some(("{", of)) => Shape::Map(Element::read(of, find)),
            _ => Shape::One(Element::read(code, find)),
        };
        let mut field = Self {
            name,
            tag: number(tag),
            shape,
            presence: Presence::Omitted,
            merge_key: None,
            retain_keys: false,
            atomic: false,
            set: false,
            list_keys: "",
            wrapped: false,
        };
        for flag in words {
            match flag.split_once('=').unwrap_or((flag, "")) {
                ("kept", _) => field.presence = Presence::Kept,
                ("always", _) => field.presence = Presence::Always,
                ("null", _) => field.presence = Presence::Null,
                ("merge", key) => field.merge_key = Some(key),
                ("retain", _) => field.retain_keys = true,
                ("atomic", _) => field.atomic = true,
                ("set", _) => field.set = true,
                ("keys", keys) => field.list_keys = keys,
                ("wrapped", _) => field.wrapped = true,
                (other, _) => panic!("the facts flag {name} with {other}"),
            }
        }
        field
    }
}

impl Element {
    fn read(code: &str, find: &impl Fn(&str) -> TypeId) -> Self {
        Self::Scalar(match code {
            "s" => Scalar::Text,
            "b" => Scalar::Bool,
            "i" => Scalar::Int32,
            "l" => Scalar::Int64,
            "d" => Scalar::Float,
            "y" => Scalar::Bytes,
            "q" => Scalar::Quantity,
            "o" => Scalar::IntOrText,
            "t" => Scalar::Time,
            "u" => Scalar::MicroTime,
            "j" => Scalar::Any,
            "w" => Scalar::Texts,
            name => return Self::Message(find(name.trim_start_matches('@'))),
        })
    }
}

fn number(digits: &str) -> u32 {
    digits
        .parse()
        .unwrap_or_else(|_| panic!("the facts hold a tag {digits}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::kinds::KINDS;

    #[test]
    fn every_served_kind_is_described() {
        for one in KINDS {
            let schema = kind(one.group, one.version, one.kind).unwrap_or_else(|| panic!("{}", one.kind));
            assert_eq!(schema.api_version(), one.api_version());
            assert_eq!(
                schema.root().field("metadata").and_then(Field::message).map(Type::name),
                Some("ObjectMeta")
            );
            for part in one.subresources {
                let (group, version) = match part.group {
                    "" => (one.group, one.version),
                    group => (group, part.version),
                };
                assert!(kind(group, version, part.kind).is_some(), "{}", part.kind);
            }
        }
        for name in ["Binding", "Status", "DeleteOptions", "PodList"] {
            assert!(kind_of("v1", name).is_some(), "{name}");
        }
    }

    #[test]
    fn fields_carry_their_facts() {
        let pod = kind_of("v1", "Pod").unwrap().root();
        let spec = pod.field("spec").unwrap();
        assert_eq!((spec.tag, spec.presence), (2, Presence::Always));
        let spec = spec.message().unwrap();
        assert_eq!(
            (spec.full_name, spec.name(), spec.go_name()),
            ("core.v1.PodSpec", "PodSpec", "v1.PodSpec")
        );
        let ports = spec.field("containers").and_then(Field::message).unwrap();
        let ports = ports.field("ports").unwrap();
        assert_eq!(ports.merge_key, Some("containerPort"));
        assert_eq!(ports.list_keys().collect::<Vec<_>>(), ["containerPort", "protocol"]);
        assert_eq!(
            spec.field("tolerations").map(|field| (field.atomic, field.merge_key)),
            Some((true, None))
        );
        assert_eq!(spec.field("containersx").map(|field| field.name), None);
        let volumes = spec.field("volumes").unwrap();
        assert!(volumes.retain_keys);
        let volume = volumes.message().unwrap();
        assert_eq!(volume.field("configMap").map(|field| field.tag), Some(0));
        assert_eq!(volume.spelled_out_by_tag(2).map(Type::name), Some("VolumeSource"));
        assert_eq!(volume.field_by_tag(1).map(|field| field.name), Some("name"));
    }
}
