use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, date_time_ymd,
};

use super::*;

const YEAR_MS: i64 = 365 * 86_400_000;

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

fn ca(name: &str) -> Ca {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    Ca { issuer: Issuer::new(params, key), certificate }
}

/// A certificate for 2030 and 2031.
fn leaf(ca: &Ca, name: &str, usage: ExtendedKeyUsagePurpose) -> CertificateDer<'static> {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.extended_key_usages = vec![usage];
    params.not_before = date_time_ymd(2030, 1, 1);
    params.not_after = date_time_ymd(2032, 1, 1);
    let key = KeyPair::generate().unwrap();
    params.signed_by(&key, &ca.issuer).unwrap().der().clone()
}

fn in_year(year: i64) -> i64 {
    (year - 1970) * YEAR_MS + YEAR_MS / 2
}

#[test]
fn who_signed_is_judged_apart_from_when() {
    let (own, other) = (ca("own"), ca("other"));
    let bundle = Bundle::new(vec![ca("newer").certificate, own.certificate.clone()]).unwrap();
    let good = leaf(&own, "a", ExtendedKeyUsagePurpose::ClientAuth);
    let judge = |leaf: &CertificateDer<'_>, usage, year| bundle.judge(leaf, &[], usage, unix(in_year(year))).ok();
    assert_eq!(judge(&good, Usage::Client, 2031), Some(Validity::Current));
    assert_eq!(judge(&good, Usage::Client, 2040), Some(Validity::Expired));
    assert_eq!(judge(&good, Usage::Client, 2028), Some(Validity::Early));
    // Being out of its time forgives nothing else.
    let foreign = leaf(&other, "a", ExtendedKeyUsagePurpose::ClientAuth);
    for year in [2028, 2031, 2040] {
        assert_eq!(judge(&good, Usage::Server, year), None);
        assert_eq!(judge(&foreign, Usage::Client, year), None);
    }
}

#[test]
fn a_period_is_read() {
    let (own, other) = (ca("own"), ca("other"));
    let good = leaf(&own, "a", ExtendedKeyUsagePurpose::ClientAuth);
    let bundle = Bundle::new(vec![own.certificate]).unwrap();
    let period = Period {
        begins_ms: parse_rfc3339("2030-01-01T00:00:00Z").unwrap() * 1000,
        ends_ms: parse_rfc3339("2032-01-01T00:00:00Z").unwrap() * 1000,
    };
    assert_eq!(bundle.period(&good, &[], Usage::Client).unwrap(), period);
    assert!(bundle.period(&good, &[], Usage::Server).is_err());
    let foreign = leaf(&other, "a", ExtendedKeyUsagePurpose::ClientAuth);
    assert!(bundle.period(&foreign, &[], Usage::Client).is_err());
}

#[test]
fn a_node_forgives_early_only_while_its_clock_is_not_trusted() {
    let ca = ca("own");
    let good = leaf(&ca, SERVER_NAME, ExtendedKeyUsagePurpose::ServerAuth);
    let check = |trusted, year, floor_year, expected: Result<(), CertificateError>| {
        let time = NodeTime {
            clock: Arc::new(move || Wall { ms: in_year(year), trusted }),
            floor_ms: in_year(floor_year),
        };
        let bundle = Bundle::new(vec![ca.certificate.clone()]).unwrap();
        assert_eq!(
            CloudVerifier::bundle(bundle, time).judge(&good, &[]),
            expected,
            "{trusted} {year} {floor_year}"
        );
    };
    check(true, 2031, 1970, Ok(()));
    check(false, 1970, 1970, Ok(()));
    check(true, 2028, 1970, Err(CertificateError::NotValidYet));
    check(false, 2040, 1970, Err(CertificateError::Expired));
    // A clock that fell back does not make an expired certificate good again.
    check(false, 1970, 2040, Err(CertificateError::Expired));
    check(true, 2031, 2040, Err(CertificateError::Expired));
}

#[test]
fn a_node_takes_one_name_and_no_other() {
    let ca = ca("own");
    let time = NodeTime {
        clock: Arc::new(|| Wall { ms: in_year(2031), trusted: true }),
        floor_ms: 0,
    };
    let verifier = CloudVerifier::pinned(sha256(&ca.certificate), time.clone());
    let chain = [ca.certificate.clone()];
    let named = |name: &str| leaf(&ca, name, ExtendedKeyUsagePurpose::ServerAuth);
    assert_eq!(verifier.judge(&named(SERVER_NAME), &chain), Ok(()));
    assert_eq!(
        verifier.judge(&named("localhost"), &chain),
        Err(CertificateError::NotValidForName)
    );
    // The pinned CA is not shown, or is another.
    let unknown = Err(CertificateError::UnknownIssuer);
    assert_eq!(verifier.judge(&named(SERVER_NAME), &[]), unknown);
    let other = CloudVerifier::pinned([0; 32], time);
    assert_eq!(other.judge(&named(SERVER_NAME), &chain), unknown);
}

#[test]
fn names_are_read_from_the_certificate() {
    let certificate = leaf(&ca("own"), "a", ExtendedKeyUsagePurpose::ClientAuth);
    let (subject, _) = subject(&certificate).unwrap();
    assert_eq!(subject.common_name, "a");
    assert_eq!(subject.organisations, ["system:nodes"]);
    assert!(names(&[0x31, 0x05]).is_err());
}

#[test]
fn a_bundle_is_bounded() {
    let cas: Vec<_> = (0..=BUNDLE_CAS_MAX).map(|_| ca("a").certificate).collect();
    assert!(Bundle::new(cas[1..].to_vec()).is_ok());
    assert!(matches!(Bundle::new(cas), Err(TrustError::TooMany(9))));
    assert!(matches!(Bundle::new(vec![]), Err(TrustError::Empty)));
    assert!(Bundle::from_pem("").is_err());
}

#[test]
fn the_build_time_is_readable() {
    assert!(built_ms() > 0);
    assert_eq!(unix(0), unix(built_ms()));
}
