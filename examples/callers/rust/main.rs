// Runs the digits model. SPDX-License-Identifier: 0BSD
use std::os::raw::c_void;
use std::{env, fs, process::ExitCode};

#[repr(C)]
struct Inputs {
    image: *const c_void,
}

#[repr(C)]
struct Outputs {
    probabilities: *mut c_void,
}

extern "C" {
    fn tvmgen_digits_run(inputs: *mut Inputs, outputs: *mut Outputs) -> i32;
}

const IMAGE: usize = 64;
const DIGITS: usize = 10;

fn run(image: &[f32; IMAGE]) -> Option<[f32; DIGITS]> {
    let mut probabilities = [0.0; DIGITS];
    let mut inputs = Inputs { image: image.as_ptr().cast() };
    let mut outputs = Outputs { probabilities: probabilities.as_mut_ptr().cast() };
    // the header declares the size behind each pointer; the call does not keep the pointers
    let status = unsafe { tvmgen_digits_run(&mut inputs, &mut outputs) };
    (status == 0).then_some(probabilities)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, image, out] = &arguments[..] else {
        eprintln!("usage: rusty IMAGE OUT");
        return ExitCode::from(2);
    };
    let bytes = fs::read(image).unwrap_or_default();
    if bytes.len() != IMAGE * 4 {
        eprintln!("{image} has {} bytes, not {}", bytes.len(), IMAGE * 4);
        return ExitCode::from(2);
    }
    let mut pixels = [0.0f32; IMAGE];
    for (pixel, word) in pixels.iter_mut().zip(bytes.chunks_exact(4)) {
        *pixel = f32::from_le_bytes([word[0], word[1], word[2], word[3]]);
    }
    let Some(probabilities) = run(&pixels) else {
        eprintln!("the model failed");
        return ExitCode::FAILURE;
    };
    let written: Vec<u8> = probabilities.iter().flat_map(|value| value.to_le_bytes()).collect();
    match fs::write(out, written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{out}: {error}");
            ExitCode::FAILURE
        }
    }
}
