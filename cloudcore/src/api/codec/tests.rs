use base64::Engine as _;
use proto::value::json;

use super::*;
use crate::api::{defaults, kinds, validate};

/// A small generator of numbers, so that a failing round can be run again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap() % end.max(1)
    }
}

struct Pair {
    schema: &'static KindSchema,
    json: Value,
    protobuf: Vec<u8>,
}

/// Objects of a real server in both formats; those of groups that are not described are left out.
fn pairs() -> Vec<Pair> {
    include_str!("../../../testdata/protobuf-pairs.jsonl")
        .lines()
        .filter_map(|line| {
            let record = json::parse(line.as_bytes()).unwrap();
            let object = record.get("json").unwrap().clone();
            let protobuf = base64::engine::general_purpose::STANDARD
                .decode(record.text_at(&["protobuf_b64"]).unwrap())
                .unwrap();
            let schema = schema::kind_of(object.text_at(&["apiVersion"])?, object.text_at(&["kind"])?)?;
            Some(Pair { schema, json: object, protobuf })
        })
        .collect()
}

const PROTOBUF: Option<&str> = Some("application/vnd.kubernetes.protobuf");

#[test]
fn both_formats_of_an_object_are_one_object() {
    let pairs = pairs();
    assert!(pairs.len() >= 40, "{}", pairs.len());
    let mut wrong = Vec::new();
    for pair in &pairs {
        let text = json::write(&pair.json);
        let from_json = decode(None, text.as_bytes(), pair.schema, FieldValidation::Strict)
            .unwrap()
            .value;
        let from_wire = decode(PROTOBUF, &pair.protobuf, pair.schema, FieldValidation::Strict)
            .unwrap()
            .value;
        for (format, value) in [("json", from_json), ("protobuf", from_wire)] {
            let read = json::write(&value);
            // A real server's defaults name the kind of claim templates; protobuf does not carry it.
            if read != text && (pair.schema.kind, format) != ("StatefulSet", "protobuf") {
                wrong.push(format!("{} {format}\n  {read}\n  {text}", pair.schema.kind));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn mutated_bodies_never_panic() {
    const ROUNDS: usize = 12_000;
    let pairs = pairs();
    let yaml = Some("application/yaml");
    let mut random = Random(42);
    for round in 0..ROUNDS {
        let pair = &pairs[random.below(pairs.len())];
        let (content_type, mut body) = match round % 3 {
            0 => (None, json::write(&pair.json).into_bytes()),
            1 => (yaml, json::write(&pair.json).replace("\",\"", "\",\n \"").into_bytes()),
            _ => (PROTOBUF, pair.protobuf.clone()),
        };
        for _ in 0..=random.below(4) {
            let at = random.below(body.len());
            match random.below(5) {
                0 if at < body.len() => body[at] = u8::try_from(random.below(256)).unwrap(),
                1 => body.truncate(at),
                2 => body.insert(at, b"{}[]\",:&*-\n0\xff"[random.below(13)]),
                3 => {
                    let end = (at + random.below(40)).min(body.len());
                    let piece = body[at..end].to_vec();
                    body.splice(at..at, piece);
                }
                _ => {
                    let end = (at + random.below(20)).min(body.len());
                    body.drain(at..end);
                }
            }
        }
        let other = &pairs[random.below(pairs.len())];
        let schema = if random.below(8) == 0 {
            other.schema
        } else {
            pair.schema
        };
        if let Ok(decoded) = decode(content_type, &body, schema, FieldValidation::Warn) {
            let again = conform(&decoded.value, schema, FieldValidation::Strict);
            assert_eq!(again.map(|again| again.value), Ok(decoded.value), "round {round}");
        }
    }
}

fn refusal(content_type: Option<&str>, body: &[u8], kind: &str, validation: FieldValidation) -> DecodeError {
    let schema = schema::kind_of("v1", kind).unwrap();
    decode(content_type, body, schema, validation).unwrap_err()
}

#[test]
fn limits() {
    let config = schema::kind_of("v1", "ConfigMap").unwrap();
    let sized = |length: usize| {
        let empty = br#"{"data":{"k":""}}"#.len();
        [
            br#"{"data":{"k":""#.to_vec(),
            b"x".repeat(length - empty),
            b"\"}}".to_vec(),
        ]
        .concat()
    };
    assert!(decode(None, &sized(BODY_BYTES_MAX), config, FieldValidation::Warn).is_ok());
    let large = decode(None, &sized(BODY_BYTES_MAX + 1), config, FieldValidation::Warn).unwrap_err();
    assert_eq!((large.code(), large), (413, DecodeError::TooLarge));
    let deep = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{open}{close}}}]}}}}"#).into_bytes()
    };
    assert!(decode(None, &deep(123), config, FieldValidation::Warn).is_ok());
    assert!(matches!(
        refusal(None, &deep(124), "ConfigMap", FieldValidation::Warn),
        DecodeError::Unrecognized { .. }
    ));
    let many: String = (0..=read::NOTES_MAX).map(|at| format!(r#""x{at}":1,"#)).collect();
    let many = format!("{{{many}\"kind\":\"ConfigMap\"}}");
    let decoded = decode(None, many.as_bytes(), config, FieldValidation::Warn).unwrap();
    assert_eq!(decoded.warnings.len(), read::NOTES_MAX);
}

#[test]
fn broken_messages_are_named() {
    let unknown = |raw: &[u8]| {
        let mut body = wire::MAGIC.to_vec();
        body.extend([0x12, u8::try_from(raw.len()).unwrap()]);
        body.extend(raw);
        body
    };
    let pod = schema::kind_of("v1", "Pod").unwrap();
    let body = unknown(&[0x0a, 0x03, 0x0a, 0x01, b'x']);
    let decoded = decode(PROTOBUF, &body, pod, FieldValidation::Strict).unwrap();
    assert_eq!(decoded.value.text_at(&["metadata", "name"]), Some("x"));
    for (raw, words) in [
        (&[0x0a, 0x05, 0x0a][..], "unexpected EOF"),
        (&[0x08, 0x01], "proto: wrong wireType = 0 for field metadata"),
        (&[0x0b], "proto: illegal wireType 3"),
        (&[0x00, 0x00], "proto: illegal tag 0"),
        (
            &[0x0a, 0x03, 0x0a, 0x01, 0xff],
            "proto: field name contains invalid UTF-8",
        ),
        (
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            "proto: integer overflow",
        ),
    ] {
        let refused = decode(PROTOBUF, &unknown(raw), pod, FieldValidation::Strict).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("Pod in version \"v1\" cannot be handled as a Pod: {words}")
        );
    }
    assert!(decode(PROTOBUF, b"k8s", pod, FieldValidation::Strict).is_err());
}

#[test]
fn yaml_is_read_like_json() {
    let config = schema::kind_of("v1", "ConfigMap").unwrap();
    let body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: v\nbogus: 1\ndata:\n  z: \"1\"\n";
    let yaml = Some("application/yaml; charset=utf-8");
    let decoded = decode(yaml, body, config, FieldValidation::Warn).unwrap();
    assert_eq!(decoded.value.text_at(&["data", "z"]), Some("1"));
    assert_eq!(
        decoded.warnings,
        [
            "yaml: unmarshal errors:\n  line 7: key \"data\" already set in map",
            "unknown field \"bogus\""
        ]
    );
    let refused = decode(yaml, b"a: [", config, FieldValidation::Warn).unwrap_err();
    assert_eq!(refused.code(), 400);
}

#[test]
fn options_of_a_deletion_go_by_any_group() {
    let options = schema::kind_of("v1", "DeleteOptions").unwrap();
    for body in [
        r#"{"propagationPolicy":"Background"}"#,
        r#"{"kind":"DeleteOptions","apiVersion":"apps/v1","propagationPolicy":"Background"}"#,
    ] {
        let decoded = decode(None, body.as_bytes(), options, FieldValidation::Strict).unwrap();
        assert_eq!(decoded.value.text_at(&["propagationPolicy"]), Some("Background"));
    }
    let zero = decode(None, br#"{"gracePeriodSeconds":0}"#, options, FieldValidation::Strict).unwrap();
    assert_eq!(zero.value.int_at(&["gracePeriodSeconds"]), Some(0));
    assert!(
        decode(
            None,
            br#"{"kind":"Pod","apiVersion":"v1"}"#,
            options,
            FieldValidation::Strict
        )
        .is_err()
    );
}

#[test]
fn broken_json_is_named_as_go_names_it() {
    let check = |body: &str, words: &str| {
        let error = refusal(None, body.as_bytes(), "ConfigMap", FieldValidation::Warn);
        assert_eq!(
            error.detail(),
            format!("couldn't get version/kind; json parse error: {words}"),
            "{body}"
        );
    };
    check("", "unexpected end of JSON input");
    check("{\"a\" 1}", "invalid character '1' after object key");
    check("{\"a\":1 x}", "invalid character 'x' after object key:value pair");
    check(
        "{1}",
        "invalid character '1' looking for beginning of object key string",
    );
    check("{\"a\":x}", "invalid character 'x' looking for beginning of value");
    check("{} x", "invalid character 'x' after top-level value");
}

#[test]
fn bodies_of_kubectl_are_read_and_valid() {
    // Sent by kubectl 1.33, which writes the zero of every field that is no pointer in Go.
    let mut wrong = Vec::new();
    for line in include_str!("../../../testdata/kubectl-bodies.jsonl").lines() {
        let record = json::parse(line.as_bytes()).unwrap();
        let (version, kind) = record.text_at(&["kind"]).unwrap().split_once(' ').unwrap();
        let schema = schema::kind_of(version, kind).unwrap();
        let body = base64::engine::general_purpose::STANDARD
            .decode(record.text_at(&["protobuf_b64"]).unwrap())
            .unwrap();
        let mut object = decode(PROTOBUF, &body, schema, FieldValidation::Strict).unwrap().value;
        let (read, expected) = (json::write(&object), json::write(record.get("json").unwrap()));
        if read != expected {
            wrong.push(format!(
                "{}\n  {read}\n  {expected}",
                record.text_at(&["command"]).unwrap()
            ));
        }
        if let Some(kind) = kinds::kind(schema.group, schema.version, schema.kind) {
            defaults::apply_defaults(kind, &mut object);
            assert_eq!(validate::validate_create(kind, &object), [], "{read}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
