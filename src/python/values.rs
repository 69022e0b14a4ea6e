//! Short texts for values of variables: numbers, strings and lengths, and the class of anything
//! else.

use super::discover::Interpreter;
use super::layout::objects::{DICT_USED, INT_DIGIT};
use super::objects::{ObjectError, read_str};
use super::variables::class_of;
use crate::memory::Memory;

/// Maximum bytes of a string that are shown.
const MAX_TEXT: usize = 60;
/// Maximum bytes that are read: the cut part helps to recognize a secret.
const MAX_READ: usize = 4096;
/// First field after the object's head: `ob_size`, `lv_tag`, `ob_fval`.
const FIRST: u32 = 16;
/// Bits of a digit of an int. Include/cpython/longintrepr.h.
const DIGIT_BITS: u32 = 30;

/// The value of an int; `None` for any other object and above 60 bits.
pub fn read_int(interpreter: &Interpreter, object: u64, memory: &dyn Memory) -> Option<i64> {
    match class_of(&interpreter.layout.objects, object, memory)
        .ok()?
        .as_str()
    {
        "int" => small_int(interpreter, object, memory).ok().flatten(),
        _ => None,
    }
}

fn small_int(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
) -> Result<Option<i64>, ObjectError> {
    let layout = &interpreter.layout.objects;
    let word = memory.read_u64(object.wrapping_add(layout.at(FIRST)))?;
    // Up to 3.11 the sign of `ob_size` is the number's; from 3.12 on two bits of `lv_tag` are: 0
    // positive, 1 zero, 2 negative.
    let (digits, is_negative) = match interpreter.version.minor {
        ..=11 => ((word as i64).unsigned_abs(), (word as i64) < 0),
        _ => (word >> 3, word & 3 == 2),
    };
    let digit = |index: u64| memory.read_u32(object.wrapping_add(layout.at(INT_DIGIT) + index * 4));
    let size = match digits {
        0 => 0,
        1 => i64::from(digit(0)?),
        2 => i64::from(digit(1)?) << DIGIT_BITS | i64::from(digit(0)?),
        _ => return Ok(None),
    };
    Ok(Some(if is_negative { -size } else { size }))
}

/// A short text for an object. `of_tensor` describes tensors; `shown` filters the text of a string
/// or of an int.
///
/// # Errors
/// [`ObjectError`] if no object can be read there.
pub fn describe(
    interpreter: &Interpreter,
    object: u64,
    memory: &dyn Memory,
    of_tensor: impl Fn(u64, &str) -> Option<String>,
    shown: impl Fn(&str) -> String,
) -> Result<String, ObjectError> {
    let layout = &interpreter.layout.objects;
    let class = class_of(layout, object, memory)?;
    let word = |offset: u32| memory.read_u64(object.wrapping_add(layout.at(offset)));
    Ok(match class.as_str() {
        "NoneType" => "None".to_owned(),
        "bool" => match memory.read_u32(object.wrapping_add(layout.at(INT_DIGIT)))? {
            0 => "False".to_owned(),
            _ => "True".to_owned(),
        },
        "int" => match small_int(interpreter, object, memory)? {
            Some(value) => shown(&value.to_string()),
            None => "int of more than 60 bits".to_owned(),
        },
        "float" => format!("{:?}", f64::from_bits(word(FIRST)?)),
        "str" => {
            let text = read_str(&interpreter.layout, object, MAX_READ, memory)?;
            let text = shown(&text);
            match text.len() > MAX_TEXT {
                true => {
                    let cut: String = text.chars().take(MAX_TEXT - 1).collect();
                    format!("{cut:?}…")
                }
                false => format!("{text:?}"),
            }
        }
        "list" | "tuple" | "bytes" => format!("{class} of {}", word(FIRST)?),
        "dict" => format!("dict of {}", word(DICT_USED)?),
        "type" => "class".to_owned(),
        _ => of_tensor(object, &class).unwrap_or_else(|| format!("<{class}>")),
    })
}
