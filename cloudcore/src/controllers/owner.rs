//! Who owns what: controller references, adoption and release.

use proto::object::selector::Selector;
use proto::object::{Key, Uid};
use proto::value::Value;

use super::plan::{Edit, Write, api_version};
use super::view::Object;

/// The reference by which `owner` controls what it makes.
pub fn controller_reference(owner: &Object) -> Value {
    Value::from([
        ("apiVersion", api_version(&owner.key.kind)),
        ("kind", owner.key.kind.kind().into()),
        ("name", owner.key.name.as_str().into()),
        ("uid", owner.uid.to_string().into()),
        ("controller", true.into()),
        ("blockOwnerDeletion", true.into()),
    ])
}

/// The reference to the one owner that controls an object.
fn controller(object: &Value) -> Option<&Value> {
    let owners = object.list_at(&["metadata", "ownerReferences"]);
    owners.iter().find(|owner| owner.flag_at(&["controller"]))
}

/// Which object controls this one.
pub fn controller_uid(object: &Value) -> Option<Uid> {
    controller(object)?.text_at(&["uid"])?.parse().ok()
}

/// Where the controller of an object is, if it is of `kind`.
pub fn controller_key(object: &Object, kind: &str) -> Option<Key> {
    let owner = controller(&object.value)?;
    let key = reference_key(owner, &object.key.namespace)?;
    (key.kind.as_str() == kind).then_some(key)
}

/// The key that an owner reference names, in the namespace of the dependent.
pub fn reference_key(owner: &Value, namespace: &str) -> Option<Key> {
    let kind = proto::object::Kind::of(owner)?;
    Some(Key::new(kind, namespace, owner.text_at(&["name"])?))
}

/// What an owner's claim on candidates comes to.
#[derive(Debug)]
pub struct Claim {
    /// Controlled by the owner, by uid.
    pub owned: Vec<Object>,
    /// References given to orphans and taken from those that no longer match. An adopted object is owned from the next
    /// look on, a released one from this look on no longer.
    pub writes: Vec<Write>,
}

/// Sorts candidates: those the owner controls and selects it keeps, orphans that it selects it adopts, what it
/// controls and no longer selects it lets go. An owner that is being deleted does neither.
pub fn claim(owner: &Object, selector: &Selector, candidates: Vec<Object>) -> Claim {
    let mut claim = Claim { owned: Vec::new(), writes: Vec::new() };
    for object in candidates {
        let selected = selector.matches_object(&object.value);
        match controller_uid(&object.value) {
            Some(uid) if uid != owner.uid => {}
            Some(_) if selected || owner.is_deleting() || object.is_deleting() => claim.owned.push(object),
            Some(_) => claim.writes.push(release(&object, owner.uid)),
            None if selected && !owner.is_deleting() && !object.is_deleting() => {
                let mut owners = object.value.list_at(&["metadata", "ownerReferences"]).to_vec();
                owners.push(controller_reference(owner));
                claim.writes.push(Write::edit(
                    &object,
                    vec![Edit::set(&["metadata", "ownerReferences"], owners)],
                ));
            }
            None => {}
        }
    }
    claim
}

/// Takes the reference to `owner` away.
pub fn release(object: &Object, owner: Uid) -> Write {
    let mut owners = object.value.list_at(&["metadata", "ownerReferences"]).to_vec();
    let uid = owner.to_string();
    owners.retain(|one| one.text_at(&["uid"]) != Some(&uid));
    let path = ["metadata", "ownerReferences"];
    let edit = if owners.is_empty() {
        Edit::remove(&path)
    } else {
        Edit::set(&path, owners)
    };
    Write::edit(object, vec![edit])
}

/// The owners of `kind` in the namespace that may care about an object: its controller, or whoever selects an orphan.
pub fn interested(object: &Object, kind: &str, owners: impl FnOnce() -> Vec<Object>) -> Vec<Key> {
    if controller(&object.value).is_some() {
        return controller_key(object, kind).into_iter().collect();
    }
    let selects = |owner: &Object| {
        let selector = Selector::of_labels(owner.value.at(&["spec", "selector"]).unwrap_or(&Value::Null));
        selector.is_ok_and(|selector| selector.is_some_and(|selector| selector.matches_object(&object.value)))
    };
    let mut owners = owners();
    owners.retain(selects);
    owners.into_iter().map(|owner| owner.key).collect()
}
