//! The stock SDK of the Realtime API, in a page, as its users have it: its own browser bundle,
//! nothing of it changed but the address it calls.

use serde_json::{Value, json};
use syrinx_bench::namespace::with_namespaces;

use crate::browser::{Browser, Kind};
use crate::calls::hear;
use crate::ground::{Ending, Report, event, on_ground};
use crate::manual;
use crate::program::sources;

/// The SDK's package, as the lock file has it.
const PACKAGE: &str = "node_modules/@openai/agents-realtime";

/// Mints a key, opens a call with it and exchanges an event, all by the SDK.
fn call(browser: &mut Browser, url: &str, secrets: &str) -> Report {
    let mut told = browser.step(0, "open", &json!({ "url": url, "secrets": secrets }));
    assert_eq!(told["key"], "ek_", "{told}");
    told["echo"] = browser.step(0, "echo", &json!({ "text": event() }));
    told["client"] = "@openai/agents-realtime".into();
    let manifest = std::fs::read(sources().join(PACKAGE).join("package.json")).expect("npm ci");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    told["version"] = manifest["version"].clone();
    serde_json::from_value(told).expect("a report")
}

#[test]
fn the_stock_sdk_connects_is_heard_interrupts_and_closes() {
    let name = "sdk::the_stock_sdk_connects_is_heard_interrupts_and_closes";
    with_namespaces(name, || {
        on_ground(|ground| {
            let mut browser = Browser::launch(ground, Kind::Chromium, &json!({}));
            let bundle = format!("{PACKAGE}/dist/bundle/openai-realtime-agents.umd.js");
            let scripts = [bundle.as_str(), "browsers/ear.js", "browsers/sdk.js"];
            browser.open(ground, &scripts.map(|script| sources().join(script)));
            let secrets = ground.edge.page_url("v1/realtime/client_secrets");
            let report = call(&mut browser, &ground.calls_url(), &secrets);
            ground.judge_report(&report);
            hear(&mut browser, ground, 0);

            let answer = "output_audio_buffer.clear";
            browser.step(0, "interrupt", &json!({ "answer": answer }));
            let told = browser.step(0, "told", &json!({}));
            assert_eq!(told["errors"], json!([]), "{told}");
            let types = told["types"].as_array().expect("a list");
            let is_updated = types.contains(&json!("session.updated"));
            assert!(is_updated, "connect() waits for it: {told}");
            let statuses = browser.step(0, "close", &json!({}));
            assert_eq!(statuses, json!(["connecting", "connected", "disconnected"]));
            ground.expect_end(Ending::Closed);
            manual::confirm(&report, Ending::Closed);
            browser.close();
        });
    });
}
