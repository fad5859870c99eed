//! The encoder's side of `tests/parity.py`: `parity MODEL FOLDER` encodes the inputs in a folder, `parity cuts LIST
//! OUT` preprocesses the pictures of a list.

use std::path::Path;

use ultta_encode::Clip;
use ultta_encode::config::Preprocess;
use ultta_encode::decode::{Limits, decode};
use ultta_encode::preprocess::cut;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [cuts, list, out] if cuts == "cuts" => {
            let mut bytes = Vec::new();
            for path in std::fs::read_to_string(list)?.lines() {
                let picture = decode(&std::fs::read(path)?, &Limits::default())?;
                bytes.extend(cut(&picture, &Preprocess::openai(224))?.rgb);
            }
            std::fs::write(out, bytes)?;
        }
        [model, folder] => {
            let clip = Clip::open(model)?;
            let folder = Path::new(folder);
            let pixels = std::fs::read(folder.join("pixels.f32"))?;
            let pixels: Vec<f32> = pixels.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            let ids = std::fs::read(folder.join("ids.u32"))?;
            let ids: Vec<u32> = ids.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
            let ids: Vec<Vec<u32>> = ids.chunks(clip.config().text.context).map(<[u32]>::to_vec).collect();
            let write = |name: &str, values: Vec<f32>| {
                std::fs::write(
                    folder.join(name),
                    values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
                )
            };
            write("image.f32", clip.raw_images(&pixels)?)?;
            write("text.f32", clip.raw_tokens(&ids)?)?;
        }
        _ => return Err("expected MODEL FOLDER, or cuts LIST OUT".into()),
    }
    Ok(())
}
