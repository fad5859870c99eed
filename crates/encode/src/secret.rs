//! Addresses as they may be shown and logged: without users, passwords and keys.

/// How names of parameters end whose values are nobody's business: `?user=…&pwd=…`, `?access_token=…`.
const NAMES: [&str; 18] = [
    "user",
    "usr",
    "username",
    "login",
    "loginuse",
    "password",
    "passwd",
    "passcode",
    "pass",
    "pas",
    "pwd",
    "psw",
    "pw",
    "token",
    "auth",
    "key",
    "secret",
    "signature",
];

/// A text with the user and the password of every address in it, and the values of parameters like `password=…`, replaced by
/// `***`.
pub fn hidden(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find("://") {
        let (before, after) = rest.split_at(place + 3);
        out.push_str(before);
        let ends = |c: char| c.is_whitespace() || "/?#'\"".contains(c);
        let host = &after[..after.find(ends).unwrap_or(after.len())];
        rest = after;
        if let Some(at) = host.rfind('@').filter(|&at| at > 0) {
            out.push_str("***");
            rest = &after[at..];
        }
    }
    without_values(&(out + rest))
}

/// A text as [`hidden`] has it, and without the user and the password of this address where they stand alone.
pub fn hidden_of(text: &str, address: &str) -> String {
    match userinfo(address) {
        Some(user) => hidden(&text.replace(&format!("{user}@"), "***@")),
        None => hidden(text),
    }
}

/// The user and the password of an address, as they stand in it.
fn userinfo(address: &str) -> Option<&str> {
    let (_, after) = address.split_once("://")?;
    let host = after.split(['/', '?', '#']).next()?;
    Some(host.rsplit_once('@')?.0).filter(|user| !user.is_empty())
}

/// A text with the values of secret parameters replaced. Some cameras have them in the path, `/user=a_password=b_channel=1`: there
/// everything up to the next `&` is hidden, because a password may hold any other sign.
fn without_values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find('=') {
        let (before, after) = rest.split_at(place + 1);
        out.push_str(before);
        rest = after;
        let letters = before[..place].trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
        let name = before[letters..place].to_ascii_lowercase();
        if NAMES.iter().any(|secret| name.ends_with(secret)) {
            let end = after.find(|c: char| c.is_whitespace() || "&;#'\"".contains(c)).unwrap_or(after.len());
            // A message goes on after an address with a colon or a comma.
            let value = after[..end].trim_end_matches([':', ',']);
            out.push_str(if value.is_empty() { "" } else { "***" });
            rest = &after[value.len()..];
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_secret_parameters_are_hidden() {
        for (said, told) in [
            (
                "http://cam/video.cgi?user=admin&pwd=s3/cr_et&channel=1: refused",
                "http://cam/video.cgi?user=***&pwd=***&channel=1: refused",
            ),
            ("rtsp://a:b@cam/?access_token=x.y", "rtsp://***@cam/?access_token=***"),
            ("'http://cam/?loginuse=a&loginpas=b'", "'http://cam/?loginuse=***&loginpas=***'"),
            ("rtsp://cam/user=admin_password=tl_Jw_channel=1.sdp", "rtsp://cam/user=***"),
            ("http://cam/?Password=geheim: 401", "http://cam/?Password=***: 401"),
            ("http://cam/?x=y&stream=0&password=", "http://cam/?x=y&stream=0&password="),
        ] {
            assert_eq!(hidden(said), told);
        }
    }
}
