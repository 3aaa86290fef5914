//! What ties a login to the server's certificate: the channel binding `tls-server-end-point`.
//!
//! <https://www.rfc-editor.org/rfc/rfc5929#section-4.1>: the certificate's hash by the hash function of its own signature,
//! SHA-256 in the place of MD5 and SHA-1.

use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};

/// The binding of a certificate in DER; `None` where its signature names no single hash function that is known, as with
/// Ed25519: the RFC leaves those undefined.
pub(in crate::net) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let hash = signature_hash(certificate)?;
    Some(digest(hash, certificate).as_ref().to_vec())
}

/// Tags of DER (X.690, section 8).
const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const CONTEXT_0: u8 = 0xa0;

/// The signature algorithms that name their hash, by the contents of their object identifiers (RFC 3279, 4055, 5758).
const BY_SIGNATURE: &[(&[u8], &Algorithm)] = &[
    // 1.2.840.113549.1.1: md5, sha1, sha256, sha384 and sha512 with RSA.
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04", &SHA256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05", &SHA256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b", &SHA256),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c", &SHA384),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d", &SHA512),
    // 1.2.840.10045.4: ecdsa with sha1, sha256, sha384 and sha512.
    (b"\x2a\x86\x48\xce\x3d\x04\x01", &SHA256),
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x02", &SHA256),
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x03", &SHA384),
    (b"\x2a\x86\x48\xce\x3d\x04\x03\x04", &SHA512),
];

/// 1.2.840.113549.1.1.10, RSASSA-PSS: the hash is among its parameters.
const RSA_PSS: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";

/// Hash functions by themselves: 1.3.14.3.2.26 is SHA-1, the others stand below 2.16.840.1.101.3.4.2.
const BY_HASH: &[(&[u8], &Algorithm)] = &[
    (b"\x2b\x0e\x03\x02\x1a", &SHA256),
    (b"\x60\x86\x48\x01\x65\x03\x04\x02\x01", &SHA256),
    (b"\x60\x86\x48\x01\x65\x03\x04\x02\x02", &SHA384),
    (b"\x60\x86\x48\x01\x65\x03\x04\x02\x03", &SHA512),
];

/// Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, signatureValue } (RFC 5280, section 4.1).
fn signature_hash(certificate: &[u8]) -> Option<&'static Algorithm> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (_signed, rest) = element(certificate, SEQUENCE)?;
    let (algorithm, _) = element(rest, SEQUENCE)?;
    let (identifier, parameters) = element(algorithm, OBJECT_IDENTIFIER)?;
    if identifier != RSA_PSS {
        return find(BY_SIGNATURE, identifier);
    }
    // RSASSA-PSS-params: hashAlgorithm is [0], SHA-1 where it is left out (RFC 4055, section 3.1).
    let (parameters, _) = element(parameters, SEQUENCE)?;
    let Some((hash, _)) = element(parameters, CONTEXT_0) else {
        return Some(&SHA256);
    };
    let (hash, _) = element(hash, SEQUENCE)?;
    let (identifier, _) = element(hash, OBJECT_IDENTIFIER)?;
    find(BY_HASH, identifier)
}

fn find(table: &[(&[u8], &'static Algorithm)], identifier: &[u8]) -> Option<&'static Algorithm> {
    let found = table.iter().find(|(known, _)| *known == identifier);
    found.map(|(_, algorithm)| *algorithm)
}

/// The contents of the element at the start of `der`, if it has this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (header, rest) = der.split_first_chunk::<2>()?;
    let [found, first] = *header;
    if found != tag {
        return None;
    }
    let (length, rest) = match first {
        ..=0x7f => (usize::from(first), rest),
        // The long form: so many bytes of length follow.
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = bytes
                .iter()
                .fold(0, |sum: usize, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    fn der(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u8::try_from(contents.len()).unwrap();
        [&[tag, length][..], contents].concat()
    }

    /// A certificate as far as it is looked at.
    fn signed_with(identifier: &[u8], parameters: &[u8]) -> Vec<u8> {
        let algorithm = [der(OBJECT_IDENTIFIER, identifier), parameters.to_vec()].concat();
        der(
            SEQUENCE,
            &[der(SEQUENCE, b""), der(SEQUENCE, &algorithm)].concat(),
        )
    }

    #[test]
    fn the_hash_is_that_of_the_signature_and_never_a_weak_one() {
        for (identifier, expected) in [
            // md5WithRSAEncryption, sha1WithRSAEncryption, ecdsa-with-SHA1
            (&b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04"[..], &SHA256),
            (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05", &SHA256),
            (b"\x2a\x86\x48\xce\x3d\x04\x01", &SHA256),
            // sha512WithRSAEncryption, ecdsa-with-SHA384
            (b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d", &SHA512),
            (b"\x2a\x86\x48\xce\x3d\x04\x03\x03", &SHA384),
        ] {
            let found = signature_hash(&signed_with(identifier, &[5, 0])).unwrap();
            assert_eq!(found, expected, "{identifier:x?}");
        }
        // 1.3.101.112, Ed25519
        assert!(signature_hash(&signed_with(b"\x2b\x65\x70", b"")).is_none());
    }

    #[test]
    fn pss_names_its_hash_among_the_parameters() {
        let with = |hash: &[u8]| {
            let hash = der(SEQUENCE, &der(OBJECT_IDENTIFIER, hash));
            signature_hash(&signed_with(RSA_PSS, &der(SEQUENCE, &der(CONTEXT_0, &hash))))
        };
        assert_eq!(with(b"\x60\x86\x48\x01\x65\x03\x04\x02\x02"), Some(&SHA384));
        assert_eq!(with(b"\x2b\x0e\x03\x02\x1a"), Some(&SHA256));
        assert_eq!(with(b"\x00"), None);
        let by_default = signature_hash(&signed_with(RSA_PSS, &der(SEQUENCE, b"")));
        assert_eq!(by_default, Some(&SHA256));
    }

    #[test]
    fn the_binding_is_the_hash_of_the_whole_certificate() {
        let pem = include_bytes!("testdata/rsa.pem");
        let certificate = CertificateDer::from_pem_slice(pem).unwrap();
        // openssl x509 -in rsa.pem -outform der | sha256sum
        let expected = include_str!("testdata/rsa.sha256").trim();
        let binding = server_end_point(&certificate).unwrap();
        let hex: String = binding.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected);
    }

    proptest! {
        #[test]
        fn no_certificate_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            server_end_point(&bytes);
            server_end_point(&der(SEQUENCE, &[der(SEQUENCE, b""), der(SEQUENCE, &bytes)].concat()));
        }
    }
}
