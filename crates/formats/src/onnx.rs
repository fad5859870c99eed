//! Writing small ONNX models: a graph of a few operators with its numbers inside.
//!
//! An ONNX file is one protocol-buffers message. Only the handful of fields that a graph of dense operators needs are
//! written here, by hand: a number is a varint behind its field's key, everything else is its bytes behind key and
//! length. Field numbers are those of `onnx.proto`.

/// Version of the file format, and of the operators.
const IR_VERSION: u64 = 8;
const OPERATORS: u64 = 13;

/// Element types of a tensor.
const FLOAT: u64 = 1;
const INT64: u64 = 7;

/// Kinds of attributes.
const INT: u64 = 2;
const INTS: u64 = 7;

/// The element type of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 32-bit floats.
    Float,
    /// 64-bit integers.
    Int64,
}

/// A size of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Known.
    Fixed(usize),
    /// Any, under a name.
    Any(&'static str),
}

/// A model as it is put together, operator by operator, in the order of their evaluation.
#[derive(Clone, Debug, Default)]
pub struct Model {
    nodes: Vec<u8>,
    tensors: Vec<u8>,
    inputs: Vec<u8>,
    outputs: Vec<u8>,
    strings: Vec<u8>,
}

impl Model {
    /// An input of floats.
    pub fn input(&mut self, name: &str, shape: &[Size]) {
        bytes(&mut self.inputs, 11, &value_info(name, Element::Float, shape));
    }

    /// An output: the result of an operator.
    pub fn output(&mut self, name: &str, element: Element, shape: &[Size]) {
        bytes(&mut self.outputs, 12, &value_info(name, element, shape));
    }

    /// Numbers inside the model.
    pub fn tensor(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let mut tensor = Vec::new();
        shape.iter().for_each(|&size| number(&mut tensor, 1, size as u64));
        number(&mut tensor, 2, FLOAT);
        bytes(&mut tensor, 8, name.as_bytes());
        let raw: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        bytes(&mut tensor, 9, &raw);
        bytes(&mut self.tensors, 5, &tensor);
    }

    /// An operator, from its inputs to its one output.
    pub fn operator(&mut self, kind: &str, inputs: &[&str], output: &str, attributes: &[Attribute<'_>]) {
        let mut node = Vec::new();
        inputs.iter().for_each(|input| bytes(&mut node, 1, input.as_bytes()));
        bytes(&mut node, 2, output.as_bytes());
        bytes(&mut node, 3, output.as_bytes());
        bytes(&mut node, 4, kind.as_bytes());
        attributes.iter().for_each(|attribute| bytes(&mut node, 5, &attribute.message()));
        bytes(&mut self.nodes, 1, &node);
    }

    /// A string beside the graph.
    pub fn string(&mut self, key: &str, value: &str) {
        let mut entry = Vec::new();
        bytes(&mut entry, 1, key.as_bytes());
        bytes(&mut entry, 2, value.as_bytes());
        bytes(&mut self.strings, 14, &entry);
    }

    /// The bytes of the file.
    pub fn to_bytes(&self, name: &str, producer: &str) -> Vec<u8> {
        let mut graph = self.nodes.clone();
        bytes(&mut graph, 2, name.as_bytes());
        graph.extend([&self.tensors[..], &self.inputs, &self.outputs].concat());
        let mut operators = Vec::new();
        bytes(&mut operators, 1, b"");
        number(&mut operators, 2, OPERATORS);
        let mut model = Vec::new();
        number(&mut model, 1, IR_VERSION);
        bytes(&mut model, 2, producer.as_bytes());
        bytes(&mut model, 7, &graph);
        bytes(&mut model, 8, &operators);
        model.extend(&self.strings);
        model
    }
}

/// A setting of an operator.
#[derive(Clone, Copy, Debug)]
pub enum Attribute<'a> {
    /// A whole number.
    Int(&'a str, i64),
    /// A list of whole numbers.
    Ints(&'a str, &'a [i64]),
}

impl Attribute<'_> {
    fn message(&self) -> Vec<u8> {
        let mut message = Vec::new();
        match self {
            Attribute::Int(name, value) => {
                bytes(&mut message, 1, name.as_bytes());
                number(&mut message, 3, *value as u64);
                number(&mut message, 20, INT);
            }
            Attribute::Ints(name, values) => {
                bytes(&mut message, 1, name.as_bytes());
                values.iter().for_each(|&value| number(&mut message, 8, value as u64));
                number(&mut message, 20, INTS);
            }
        }
        message
    }
}

/// Name, element type and shape of an input or output.
fn value_info(name: &str, element: Element, shape: &[Size]) -> Vec<u8> {
    let mut sizes = Vec::new();
    for size in shape {
        let mut one = Vec::new();
        match size {
            Size::Fixed(size) => number(&mut one, 1, *size as u64),
            Size::Any(name) => bytes(&mut one, 2, name.as_bytes()),
        }
        bytes(&mut sizes, 1, &one);
    }
    let mut tensor = Vec::new();
    number(&mut tensor, 1, if element == Element::Float { FLOAT } else { INT64 });
    bytes(&mut tensor, 2, &sizes);
    let mut kind = Vec::new();
    bytes(&mut kind, 1, &tensor);
    let mut info = Vec::new();
    bytes(&mut info, 1, name.as_bytes());
    bytes(&mut info, 2, &kind);
    info
}

/// A field that is a number.
fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

/// A field that is bytes, a string or a message.
fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

/// Seven bits a byte, lowest first; the highest bit says that more follow.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_lengths_are_encoded_as_the_format_says() {
        let mut out = Vec::new();
        number(&mut out, 1, 150);
        bytes(&mut out, 2, b"testing");
        // The two examples of the encoding's own documentation.
        assert_eq!(out, [&[0x08, 0x96, 0x01, 0x12, 0x07][..], b"testing"].concat());
        out.clear();
        number(&mut out, 3, -1i64 as u64);
        assert_eq!(out.len(), 11, "a negative number takes ten bytes");
    }

    /// A whole model of one operator, byte by byte: what `onnx.load` reads back (`crates/python/tests_torch`).
    #[test]
    fn a_model_holds_graph_numbers_and_strings() {
        let mut model = Model::default();
        model.input("x", &[Size::Any("n"), Size::Fixed(2)]);
        model.tensor("w", &[2], &[1.0, -2.0]);
        model.operator("Mul", &["x", "w"], "y", &[Attribute::Ints("axes", &[1]), Attribute::Int("keep", 0)]);
        model.output("y", Element::Float, &[Size::Any("n"), Size::Fixed(2)]);
        model.string("k", "v");
        let bytes = model.to_bytes("g", "p");
        assert_eq!(bytes[..5], [0x08, 8, 0x12, 1, b'p']);
        let has = |part: &[u8]| bytes.windows(part.len()).any(|w| w == part);
        assert!(has(b"\x0a\x01x\x0a\x01w\x12\x01y\x1a\x01y\x22\x03Mul"), "the operator");
        assert!(has(b"\x08\x02\x10\x01\x42\x01w\x4a\x08\x00\x00\x80\x3f\x00\x00\x00\xc0"), "the numbers");
        assert!(has(b"\x42\x04\x0a\x00\x10\x0d"), "the operators' version");
        assert!(bytes.ends_with(b"\x72\x06\x0a\x01k\x12\x01v"));
    }
}
