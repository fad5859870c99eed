//! HMAC-SHA256 (RFC 2104), so that a receiver can tell that a notice comes from this server.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// `sha256=` and the HMAC of a body under a secret, in hexadecimal.
pub fn sign(secret: &[u8], body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("a secret may have any length");
    let signed = mac.chain_update(body).finalize().into_bytes();
    signed.iter().fold("sha256=".to_string(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_rfc_4231() {
        assert_eq!(
            sign(b"Jefe", b"what do ya want for nothing?"),
            "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            sign(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
            "sha256=60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
