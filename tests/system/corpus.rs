//! The recorded answers of a real API server, replayed on ours.

use std::path::Path;

use cloudcore::api::kinds;
use cloudcore::api::path::{Route, route};
use proto::value::json;

use tests::api_server::{ApiServer, TOKEN};
use tests::replay::replay;

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[tokio::test]
async fn recorded_answers() {
    let data = tempfile::tempdir().unwrap();
    let server = ApiServer::start(data.path()).await.unwrap();
    let client = server.client(TOKEN).unwrap();
    let report = replay(folder(), &client).await.unwrap();
    println!("{report}");
    let surprises = report.surprises();
    assert!(surprises.is_empty(), "{}\n{report}", surprises.join("\n"));
    let (passed, all) = report.in_scope();
    assert!(passed * 100 >= all * 90, "{passed} of {all} is below 90 %");
    server.stop().await;
}

/// The columns of the kinds that are served are those of the recorded tables.
#[test]
fn recorded_columns() {
    let text = std::fs::read_to_string(folder().join("tables.examples.jsonl")).unwrap();
    let mut checked = 0;
    for line in text.lines() {
        let record = json::parse(line.as_bytes()).unwrap();
        let Route::Resource(target) = route(record.text_at(&["request", "path"]).unwrap()) else {
            panic!("a path that is no resource");
        };
        let Some(kind) = kinds::resource(&target.group, &target.version, &target.resource) else {
            panic!("{} is not served", target.resource);
        };
        let recorded = record.list_at(&["response", "body", "columnDefinitions"]);
        let found = kind.columns.iter().map(|column| {
            (
                Some(column.name),
                Some(column.kind),
                Some(column.format),
                Some(i64::from(column.priority)),
            )
        });
        let expected = recorded.iter().map(|column| {
            let text = |field| column.text_at(&[field]);
            (text("name"), text("type"), text("format"), column.int_at(&["priority"]))
        });
        assert!(found.eq(expected), "{}", target.resource);
        checked += 1;
    }
    assert_eq!(checked, 12);
}
