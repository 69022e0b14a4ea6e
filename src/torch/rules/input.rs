//! What a DataLoader's worker is about: which functions decode, transform, collate, read, send or wait.
//!
//! A worker's moment is read from its leaf outward to the first function that a row knows. Behind what no row knows stands the
//! user's own dataset code.

use super::phases::{has_path, last_part};
use crate::model::category::FrameKind;
use crate::model::input::{InputPart, InputTask};
use crate::torch::symbol_name::SymbolName;

use InputPart::{Fetch, Loop, Own, Task};
use InputTask::{Collate, Decode, Idle, Read, Send, Transform};

/// Python functions: part of the file's path, beginning of the last part of the name (`*` for all), meaning. First match.
/// Source: torch 2.15.0, torchvision 0.30, Pillow 12, numpy 2.4, and the packages' own documentation.
const PYTHON: &[(&str, &str, InputPart)] = &[
    ("torch/utils/data/_utils/worker.py", "_worker_loop", Loop),
    ("torch/utils/data/_utils/fetch.py", "fetch", Fetch),
    ("torch/utils/data/_utils/collate.py", "*", Task(Collate)),
    ("torch/utils/data/_utils/pin_memory.py", "*", Task(Collate)),
    ("transformers/data/data_collator.py", "*", Task(Collate)),
    ("multiprocessing/queues.py", "put", Task(Send)),
    ("multiprocessing/queues.py", "_feed", Task(Send)),
    ("torch/multiprocessing/reductions.py", "*", Task(Send)),
    ("multiprocessing/queues.py", "get", Task(Idle)),
    ("multiprocessing/connection.py", "poll", Task(Idle)),
    ("PIL/ImageFile.py", "*", Task(Decode)),
    ("PIL/Image.py", "open", Task(Decode)),
    ("PIL/Image.py", "_decompression_bomb_check", Task(Decode)),
    ("PIL/Image.py", "preinit", Task(Decode)),
    ("PIL/Image.py", "*", Task(Transform)),
    ("PIL/ImageOps.py", "*", Task(Transform)),
    ("PIL/ImageEnhance.py", "*", Task(Transform)),
    ("PIL/ImageFilter.py", "*", Task(Transform)),
    ("PIL/", "*", Task(Decode)),
    ("torchvision/io/", "*", Task(Decode)),
    ("torchvision/transforms/", "*", Task(Transform)),
    ("torchvision/datasets/folder.py", "pil_loader", Task(Decode)),
    ("torchvision/datasets/", "*", Task(InputTask::Dataset)),
    ("torchcodec/", "*", Task(Decode)),
    ("torchaudio/transforms/", "*", Task(Transform)),
    ("torchaudio/functional/", "*", Task(Transform)),
    ("torchaudio/", "*", Task(Decode)),
    ("soundfile.py", "*", Task(Decode)),
    ("librosa/core/audio.py", "*", Task(Decode)),
    ("librosa/", "*", Task(Transform)),
    ("turbojpeg.py", "*", Task(Decode)),
    ("simplejpeg/", "*", Task(Decode)),
    ("imageio/", "*", Task(Decode)),
    ("tifffile/", "*", Task(Decode)),
    ("pydicom/", "*", Task(Decode)),
    ("nibabel/", "*", Task(Decode)),
    ("rasterio/", "*", Task(Decode)),
    ("decord/", "*", Task(Decode)),
    ("av/", "*", Task(Decode)),
    ("gzip.py", "*", Task(Decode)),
    ("lzma.py", "*", Task(Decode)),
    ("bz2.py", "*", Task(Decode)),
    ("zipfile", "*", Task(Decode)),
    ("json/", "*", Task(Decode)),
    ("csv.py", "*", Task(Decode)),
    ("numcodecs/", "*", Task(Decode)),
    ("albumentations/", "*", Task(Transform)),
    ("albucore/", "*", Task(Transform)),
    ("kornia/", "*", Task(Transform)),
    ("imgaug/", "*", Task(Transform)),
    ("skimage/io/", "*", Task(Decode)),
    ("skimage/", "*", Task(Transform)),
    ("scipy/ndimage/", "*", Task(Transform)),
    ("scipy/signal/", "*", Task(Transform)),
    ("monai/transforms/", "*", Task(Transform)),
    ("audiomentations/", "*", Task(Transform)),
    ("transformers/tokenization_", "*", Task(Transform)),
    ("transformers/image_processing", "*", Task(Transform)),
    ("tokenizers/", "*", Task(Transform)),
    ("tiktoken/", "*", Task(Transform)),
    ("sentencepiece/", "*", Task(Transform)),
    ("numpy/lib/_npyio_impl.py", "*", Task(Read)),
    ("numpy/lib/npyio.py", "*", Task(Read)),
    ("numpy/lib/format.py", "*", Task(Read)),
    ("numpy/lib/_format_impl.py", "*", Task(Read)),
    ("torch/serialization.py", "*", Task(Read)),
    ("safetensors/", "*", Task(Read)),
    ("h5py/", "*", Task(Read)),
    ("zarr/", "*", Task(Read)),
    ("lmdb/", "*", Task(Read)),
    ("pyarrow/", "*", Task(Read)),
    ("pandas/io/", "*", Task(Read)),
    ("webdataset/tariterators.py", "*", Task(Read)),
    ("tarfile.py", "*", Task(Read)),
    ("fsspec/", "*", Task(Read)),
    ("s3fs/", "*", Task(Read)),
    ("datasets/arrow_", "*", Task(Read)),
    ("pathlib", "read_", Task(Read)),
];

/// Native libraries that do one thing, by the beginning of the file's name. Source: the wheels of Pillow, opencv-python,
/// torchvision, PyAV, decord and tokenizers; Debian's libraries of the same names.
const LIBRARIES: &[(&str, InputTask)] = &[
    ("libjpeg", Decode),
    ("libturbojpeg", Decode),
    ("libpng", Decode),
    ("libwebp", Decode),
    ("libtiff", Decode),
    ("libopenjp2", Decode),
    ("libavcodec", Decode),
    ("libavformat", Decode),
    ("libswscale", Decode),
    ("libdecord", Decode),
    ("libtorchcodec", Decode),
    ("libsndfile", Decode),
    ("libFLAC", Decode),
    ("libmpg123", Decode),
    ("libz.so", Decode),
    ("libz-", Decode),
    ("libzstd", Decode),
    ("liblz4", Decode),
    ("liblzma", Decode),
    ("libbz2", Decode),
    ("libblosc", Decode),
    ("tokenizers.", Transform),
    ("_tiktoken.", Transform),
    ("cv2.", Transform),
    ("libopencv_imgcodecs", Decode),
    ("libopencv_videoio", Decode),
    ("libopencv_", Transform),
];

/// Native functions by the beginning of their name. Source: Pillow's src/libImaging, CPython's Modules/zlibmodule.c, zlib.
const FUNCTIONS: &[(&str, InputTask)] = &[
    ("ImagingJpegDecode", Decode),
    ("ImagingZipDecode", Decode),
    ("ImagingWebPDecode", Decode),
    ("ImagingResample", Transform),
    ("ImagingTransform", Transform),
    ("ImagingConvert", Transform),
    ("cv::imdecode", Decode),
    ("cv::imread", Decode),
    ("vision::image::decode", Decode),
    ("jpeg_read_", Decode),
    ("png_read_", Decode),
    ("zlib_decompress", Decode),
    ("zlib_Decompress", Decode),
    ("inflate", Decode),
    ("ZSTD_decompress", Decode),
    ("LZ4_decompress", Decode),
    ("_bz2_BZ2Decompressor", Decode),
    ("_lzma_LZMADecompressor", Decode),
];

/// Words in the names of the user's own functions, in small letters. A name is a promise and no proof, but it is what the
/// user calls it. First match.
const WORDS: &[(&str, InputTask)] = &[
    ("collate", Collate),
    ("decode", Decode),
    ("decompress", Decode),
    ("imread", Decode),
    ("load_image", Decode),
    ("read_image", Decode),
    ("open_image", Decode),
    ("load_audio", Decode),
    ("read_file", Read),
    ("read_bytes", Read),
    ("transform", Transform),
    ("augment", Transform),
    ("preprocess", Transform),
    ("resize", Transform),
    ("crop", Transform),
    ("normaliz", Transform),
    ("normalis", Transform),
    ("flip", Transform),
    ("jitter", Transform),
    ("tokeni", Transform),
];

/// What a Python function tells.
pub fn python_part(file: &str, function: &str, kind: FrameKind) -> InputPart {
    let last = last_part(function);
    if kind == FrameKind::PythonUser {
        let word = last.to_ascii_lowercase();
        return WORDS
            .iter()
            .find(|(part, _)| word.contains(part))
            .map_or(Own, |&(_, task)| Task(task));
    }
    PYTHON
        .iter()
        .find(|(part, name, _)| (*name == "*" || last.starts_with(name)) && has_path(file, part))
        .map_or(InputPart::None, |&(_, _, part)| part)
}

/// What a native function tells, by its library's file and its demangled name.
pub fn native_part(file: &str, name: &str) -> InputPart {
    let file = file.rsplit('/').next().unwrap_or(file);
    let stem = SymbolName::parse(name).stem;
    let by_name = FUNCTIONS.iter().find(|(start, _)| stem.starts_with(start));
    by_name
        .or_else(|| LIBRARIES.iter().find(|(start, _)| file.starts_with(start)))
        .map_or(InputPart::None, |&(_, task)| Task(task))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_can_match() {
        for (index, (file, function, _)) in PYTHON.iter().enumerate() {
            let first = PYTHON.iter().position(|(part, name, _)| {
                (*name == "*" || function.starts_with(name)) && has_path(file, part)
            });
            assert_eq!(first, Some(index), "{file} {function} is shadowed");
        }
    }

    #[test]
    fn tasks_of_real_functions() {
        let python =
            |file: &str, function: &str| python_part(file, function, FrameKind::PythonLibrary);
        let site = "/e/lib/python3.11/site-packages/";
        for (file, function, wanted) in [
            ("PIL/ImageFile.py", "ImageFile.load", Task(Decode)),
            (
                "PIL/JpegImagePlugin.py",
                "JpegImageFile._open",
                Task(Decode),
            ),
            ("PIL/Image.py", "Image.resize", Task(Transform)),
            (
                "torchvision/transforms/transforms.py",
                "Resize.forward",
                Task(Transform),
            ),
            (
                "torch/utils/data/_utils/collate.py",
                "default_collate",
                Task(Collate),
            ),
            ("numpy/lib/_npyio_impl.py", "load", Task(Read)),
            ("torch/nn/functional.py", "pad", InputPart::None),
        ] {
            assert_eq!(python(&format!("{site}{file}"), function), wanted, "{file}");
        }
        let own = |function| python_part("/home/u/data.py", function, FrameKind::PythonUser);
        assert_eq!(own("Images.__getitem__"), Own);
        assert_eq!(own("Images.decode_row"), Task(Decode));
        assert_eq!(own("RandomCrop.__call__"), Own);
        assert_eq!(
            native_part("/x/pillow.libs/libjpeg-32d42e16.so.62", "jpeg_idct_islow"),
            Task(Decode)
        );
        assert_eq!(
            native_part("/lib/x86_64-linux-gnu/libc.so.6", "memcpy"),
            InputPart::None
        );
    }
}
