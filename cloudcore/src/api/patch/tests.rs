use super::*;
use crate::api::schema;

fn apply_to(kind: PatchKind, target: &str, patch: &str) -> Result<String, PatchError> {
    let schema = schema::kind_of("v1", "Pod").unwrap();
    let target = json::parse(target.as_bytes()).unwrap();
    apply(kind, schema, &target, patch.as_bytes()).map(|value| json::write(&value))
}

#[test]
fn merge_patches() {
    let check = |target: &str, patch: &str, merged: &str| {
        assert_eq!(
            apply_to(PatchKind::Merge, target, patch).as_deref(),
            Ok(merged),
            "{patch}"
        );
    };
    check(
        r#"{"a":{"b":1,"c":2}}"#,
        r#"{"a":{"b":null,"d":{"e":null,"f":1}}}"#,
        r#"{"a":{"c":2,"d":{"f":1}}}"#,
    );
    check(r#"{"a":[1]}"#, r#"{"a":[2]}"#, r#"{"a":[2]}"#);
    check(r#"{"a":1}"#, r#"{"a":{"b":1}}"#, r#"{"a":{"b":1}}"#);
    check(r#"{"a":1}"#, "null", r#"{"a":1}"#);
}

#[test]
fn json_patches() {
    let target = r#"{"a":{"b/c":1,"~":2},"l":[1,2]}"#;
    let check = |patch: &str, patched: &str| {
        assert_eq!(
            apply_to(PatchKind::Json, target, patch).as_deref(),
            Ok(patched),
            "{patch}"
        );
    };
    check(
        r#"[{"op":"add","path":"/l/1","value":9}]"#,
        r#"{"a":{"b/c":1,"~":2},"l":[1,9,2]}"#,
    );
    check(
        r#"[{"op":"add","path":"/l/-","value":9}]"#,
        r#"{"a":{"b/c":1,"~":2},"l":[1,2,9]}"#,
    );
    check(r#"[{"op":"remove","path":"/a/b~1c"}]"#, r#"{"a":{"~":2},"l":[1,2]}"#);
    check(
        r#"[{"op":"replace","path":"/a/x","value":1},{"op":"remove","path":"/a/x"}]"#,
        target,
    );
    check(r#"[{"op":"test","path":"/a/~0","value":2}]"#, target);
    check(r#"[{"op":"test","path":"/a/none"}]"#, target);
    check(
        r#"[{"op":"move","from":"/l/0","path":"/l/1"}]"#,
        r#"{"a":{"b/c":1,"~":2},"l":[2,1]}"#,
    );
    check(
        r#"[{"op":"copy","from":"/l","path":"/a/l"}]"#,
        r#"{"a":{"b/c":1,"l":[1,2],"~":2},"l":[1,2]}"#,
    );
    for bad in [
        r#"[{"op":"remove","path":"/l/2"}]"#,
        r#"[{"op":"replace","path":"/l/2","value":1}]"#,
        r#"[{"op":"add","path":"/l/3","value":1}]"#,
        r#"[{"op":"add","path":"/none/x","value":1}]"#,
        r#"[{"op":"add","path":"","value":{}}]"#,
        r#"[{"op":"add","path":"/a/x"}]"#,
        r#"[{"op":"test","path":"/a/~0","value":3}]"#,
        r#"[{"op":"remove","path":"/l/-"}]"#,
        r#"[{"op":"frob","path":"/l"}]"#,
        "[1]",
    ] {
        assert_eq!(
            apply_to(PatchKind::Json, target, bad),
            Err(PatchError::Rejected),
            "{bad}"
        );
    }
    let operations = |count: usize| format!("[{}]", vec![r#"{"op":"test","path":"/x"}"#; count].join(","));
    assert!(apply_to(PatchKind::Json, target, &operations(OPERATIONS_MAX)).is_ok());
    let error = apply_to(PatchKind::Json, target, &operations(OPERATIONS_MAX + 1)).unwrap_err();
    assert_eq!(error.code(), 413);
}

#[test]
fn strategic_patches() {
    let pod = r#"{"metadata":{"finalizers":["a","b"]},"spec":{"containers":[{"name":"a"},{"name":"b","image":"1"}]}}"#;
    let check = |patch: &str, spec: &str| {
        let patched = apply_to(PatchKind::Strategic, pod, patch).unwrap();
        let patched = json::parse(patched.as_bytes()).unwrap();
        assert_eq!(json::write(patched.get("spec").unwrap()), spec, "{patch}");
    };
    check(
        r#"{"spec":{"containers":[{"name":"b","args":["x"],"env":[{"name":"V","value":null}]}]}}"#,
        r#"{"containers":[{"name":"a"},{"args":["x"],"env":[{"name":"V"}],"image":"1","name":"b"}]}"#,
    );
    check(
        r#"{"spec":{"containers":[{"name":"a","$patch":"delete"}]}}"#,
        r#"{"containers":[{"image":"1","name":"b"}]}"#,
    );
    check(
        r#"{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}]}}"#,
        r#"{"containers":[{"image":"1","name":"b"},{"name":"a"}]}"#,
    );
    check(r#"{"spec":{"$patch":"replace","hostname":"h"}}"#, r#"{"hostname":"h"}"#);
    check(r#"{"spec":{"$patch":"delete"}}"#, "{}");
    check(
        r#"{"spec":{"tolerations":[{"key":"a","value":null}]}}"#,
        r#"{"containers":[{"name":"a"},{"image":"1","name":"b"}],"tolerations":[{"key":"a"}]}"#,
    );
    let refused = |patch: &str| apply_to(PatchKind::Strategic, pod, patch).unwrap_err();
    for (patch, code) in [
        (r#"{"spec":{"containers":[{"image":"x"}]}}"#, 500),
        (r#"{"spec":{"containers":[{"name":"a","$patch":"merge"}]}}"#, 500),
        (r#"{"spec":{"containers":[{"$patch":"delete"}]}}"#, 500),
        (r#"{"spec":{"containers":["x"]}}"#, 500),
        (r#"{"spec":{"$patch":"merge"}}"#, 500),
        (r#"{"spec":{"$retainKeys":"x"}}"#, 400),
        (r#"{"spec":{"$retainKeys":["a"],"hostname":"b"}}"#, 400),
        (r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":1}}"#, 400),
        (r#"{"spec":{"$setElementOrder/containers":1}}"#, 400),
        (
            r#"{"spec":{"$setElementOrder/containers":[{"name":"a"}],"containers":[{"name":"c"}]}}"#,
            500,
        ),
        ("[1]", 400),
    ] {
        assert_eq!(refused(patch).code(), code, "{patch}");
    }
}

#[test]
fn large_patches_are_refused() {
    let sized = |length: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(length - 8));
    assert!(apply_to(PatchKind::Merge, "{}", &sized(BODY_BYTES_MAX)).is_ok());
    assert_eq!(
        apply_to(PatchKind::Merge, "{}", &sized(BODY_BYTES_MAX + 1)),
        Err(PatchError::TooLarge)
    );
}
