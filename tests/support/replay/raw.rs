//! Parts of a JSON text as they are written.

/// The text of a field of an object; `None` when there is none, or the text is no JSON object.
pub(super) fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = object.trim_start().strip_prefix('{')?.trim_start();
    while !rest.starts_with('}') {
        let (key, tail) = split(rest)?;
        rest = tail.trim_start().strip_prefix(':')?.trim_start();
        let (value, tail) = split(rest)?;
        if key.trim_matches('"') == name {
            return Some(value);
        }
        rest = tail.trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    None
}

/// The first value of a text, and what follows it.
fn split(text: &str) -> Option<(&str, &str)> {
    let (mut depth, mut quoted, mut escaped) = (0u32, false, false);
    for (at, byte) in text.bytes().enumerate() {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => {
                    quoted = false;
                    if depth == 0 {
                        return Some(text.split_at(at + 1));
                    }
                }
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' | b',' | b':' if depth == 0 => return Some(text.split_at(at)),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(text.split_at(at + 1));
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_as_written() {
        let text = r#"{"a": "x\",}", "b": {"z": [1, 2],"y":3}, "c":null}"#;
        assert_eq!(field(text, "a"), Some(r#""x\",}""#));
        assert_eq!(field(text, "b"), Some(r#"{"z": [1, 2],"y":3}"#));
        assert_eq!(field(field(text, "b").unwrap(), "z"), Some("[1, 2]"));
        assert_eq!(field(text, "c"), Some("null"));
        assert_eq!(field(text, "d"), None);
        assert_eq!(field("[]", "a"), None);
    }
}
