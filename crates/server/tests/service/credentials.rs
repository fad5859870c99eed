//! How a server tells the broker who it is: token, user and password, nkey, TLS. What is secret stays so.

use std::path::Path;

use crate::common::*;
use crate::fleet::{Broker, eventually, member, settle};
use crate::groups::*;
use ultta_server::{ServerConfig, ShareSettings};

/// A pair of keys made for tests.
const NKEY_SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
const NKEY: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

fn sharing_as(folder: &Path, member: &str, url: String, share: &ShareSettings) -> ServerConfig {
    let share = ShareSettings {
        url: Some(url),
        member: Some(member.into()),
        seconds: 0.1,
        samples: 1,
        ..share.clone()
    };
    ServerConfig { share, ..config(folder) }
}

/// Two servers that are who they say share; one that is not is kept out, goes on alone, and tells no secret.
fn try_out(broker: &Broker, scheme: &str, right: &ShareSettings, wrong: &ShareSettings, secrets: &[&str]) {
    let url = || format!("{scheme}://127.0.0.1:{}", broker.port);
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let a = member(sharing_as(folders[0].path(), "a", url(), right));
    let b = member(sharing_as(folders[1].path(), "b", url(), right));
    let stranger = member(sharing_as(folders[2].path(), "stranger", url(), wrong));
    classify(&a, "cam", &rows_of(0, 80));
    classify(&stranger, "cam", &rows_of(1, 80));
    settle(&[&a, &b]);
    assert_close(&total(&a, "cam").0, &total(&b, "cam").0, scheme);
    eventually("it is kept out", || group(&stranger)["connected"] == false);
    let told = [group(&stranger), stranger.get("/healthz").1, group(&a)].map(|view| view.to_string());
    assert!(group(&stranger)["trouble"].as_str().is_some_and(|trouble| !trouble.is_empty()));
    for secret in secrets {
        assert!(told.iter().all(|told| !told.contains(secret)), "{told:?}");
        assert!(!format!("{right:?}{wrong:?}").contains(secret));
    }
    for service in [a, b, stranger] {
        service.stop();
    }
}

#[test]
fn a_token_opens_the_broker() {
    let token = |token: &str| ShareSettings { token: Some(token.into()), ..Default::default() };
    let broker = Broker::asking(&["--auth", "open-sesame"]);
    try_out(&broker, "nats", &token("open-sesame"), &token("open-barley"), &["open-sesame", "open-barley"]);
}

#[test]
fn a_user_and_a_password_open_the_broker() {
    let user = |password: &str| {
        let (user, password) = (Some("anna".into()), Some(password.into()));
        ShareSettings { user, password, ..Default::default() }
    };
    let broker = Broker::asking(&["--user", "anna", "--pass", "hush-hush"]);
    try_out(&broker, "nats", &user("hush-hush"), &user("hush-now"), &["hush-hush", "hush-now"]);
}

#[test]
fn an_nkey_opens_the_broker() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("authorization {{ users: [ {{ nkey: {NKEY} }} ] }}\n")).unwrap();
    let broker = Broker::asking(&["-c", &file.path().display().to_string()]);
    let right = ShareSettings { nkey: Some(NKEY_SEED.into()), ..Default::default() };
    try_out(&broker, "nats", &right, &ShareSettings::default(), &[NKEY_SEED]);
}

#[test]
fn tls_opens_the_broker_to_those_who_know_its_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [cert_path, key_path] = [&cert, &key].map(|path| path.display().to_string());
    let broker = Broker::asking(&["--tls", "--tlscert", &cert_path, "--tlskey", &key_path]);
    let right = ShareSettings { tls_ca: Some(cert), ..Default::default() };
    try_out(&broker, "tls", &right, &ShareSettings::default(), &[]);
}

#[test]
fn a_certificate_of_its_own_opens_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        let (cert, key) =
            (folder.path().join(format!("{name}.pem")), folder.path().join(format!("{name}.key")));
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (cert, key)
    };
    let ((cert, key), (own, own_key)) = (make("broker"), make("server"));
    let [cert_path, key_path, own_path] = [&cert, &key, &own].map(|path| path.display().to_string());
    let broker = Broker::asking(&[
        "--tlsverify",
        "--tlscert",
        &cert_path,
        "--tlskey",
        &key_path,
        "--tlscacert",
        &own_path,
    ]);
    let wrong = ShareSettings { tls_ca: Some(cert), ..Default::default() };
    let right = ShareSettings { tls_cert: Some(own), tls_key: Some(own_key), ..wrong.clone() };
    try_out(&broker, "tls", &right, &wrong, &[]);
}

/// A credentials file that makes no sense is named as what is wrong, and nothing of it is told.
#[test]
fn a_broken_credentials_file_is_told_without_its_content() {
    let folders: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
    let file = folders[0].path().join("box.creds");
    std::fs::write(&file, "-----BEGIN NATS USER JWT-----\nmy-secret-jwt\n------END NATS USER JWT------\n")
        .unwrap();
    let broker = Broker::asking(&["--auth", "open-sesame"]);
    let share = ShareSettings { credentials: Some(file), ..Default::default() };
    let url = format!("nats://127.0.0.1:{}", broker.port);
    let service = member(sharing_as(folders[1].path(), "a", url, &share));
    eventually("the file is named", || {
        group(&service)["trouble"].as_str().is_some_and(|trouble| trouble.contains("credentials file"))
    });
    let told = format!("{}{}", group(&service), service.get("/healthz").1);
    assert!(!told.contains("my-secret"), "{told}");
    service.stop();
}
