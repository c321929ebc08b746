//! In which form a client wants its answer.

/// A form of answer the client named, in its order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The object or list itself.
    Plain,
    /// A `meta.k8s.io/v1` `Table`.
    Table,
    /// `PartialObjectMetadata`, or a list of it.
    Metadata,
    /// The aggregated discovery document.
    Discovery,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
}

impl Encoding {
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// One acceptable answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    pub encoding: Encoding,
    pub form: Form,
}

/// A plain JSON answer, which every client understands.
pub const JSON: Media = Media { encoding: Encoding::Json, form: Form::Plain };

/// The answers a client accepts that can be made here, best first. Protobuf is asked for by many and needed by none.
pub fn accepted(header: Option<&str>) -> Vec<Media> {
    let header = header.map(str::trim).filter(|header| !header.is_empty());
    let Some(header) = header else { return vec![JSON] };
    header.split(',').filter_map(media).collect()
}

fn media(range: &str) -> Option<Media> {
    let mut parts = range.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "*/*" | "application/*" | "application/json" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let (mut group, mut version, mut kind) = ("", "", "");
    for (name, value) in parts.filter_map(|part| part.split_once('=')) {
        match name {
            "g" => group = value,
            "v" => version = value,
            "as" => kind = value,
            _ => {}
        }
    }
    let form = match (kind, group, version) {
        ("", ..) => Form::Plain,
        ("Table", "meta.k8s.io", "v1") => Form::Table,
        ("PartialObjectMetadata" | "PartialObjectMetadataList", "meta.k8s.io", "v1") => Form::Metadata,
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Form::Discovery,
        _ => return None,
    };
    Some(Media { encoding, form })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_send() {
        let check = |header: &str, expected: &[Media]| assert_eq!(accepted(Some(header)), expected, "{header}");
        let json = |form| Media { encoding: Encoding::Json, form };
        check("", &[JSON]);
        check("*/*", &[JSON]);
        check("application/vnd.kubernetes.protobuf,application/json", &[JSON]);
        check("application/vnd.kubernetes.protobuf", &[]);
        check(
            "application/yaml;q=1",
            &[Media { encoding: Encoding::Yaml, form: Form::Plain }],
        );
        check(
            "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
            &[json(Form::Table), JSON],
        );
        check(
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            &[json(Form::Metadata)],
        );
        check(
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            &[],
        );
        check(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
            &[json(Form::Discovery), JSON],
        );
        assert_eq!(accepted(None), [JSON]);
    }
}
