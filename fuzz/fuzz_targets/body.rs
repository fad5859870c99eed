#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for normalize in [false, true] {
        if let Ok(body) = ultta_server::body::Body::parse(bytes, normalize) {
            let rows = body.features.rows();
            assert!(body.learn.is_none_or(|learn| learn.len() == rows));
            assert!(body.times.is_none_or(|times| times.len() == rows));
        }
    }
});
