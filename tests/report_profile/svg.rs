//! Reads a drawing back with an XML parser that is not the writer's: Python's expat.

use std::io::Write;
use std::process::{Command, Stdio};

const READER: &str = r#"
import json, sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
fg = "{http://github.com/jonhoo/inferno}"
root = tree.fromstring(sys.stdin.buffer.read())
frames = root.find(f"{svg}svg[@id='frames']")
def box(g):
    rect, text = g.find(svg + "rect"), g.find(svg + "text")
    return {"title": g.find(svg + "title").text, "text": text.text or "", "x": int(rect.get(fg + "x")), "w": int(rect.get(fg + "w")),
            "y": int(rect.get("y")), "fill": rect.get("fill")}
legend = root.find(f"{svg}g[@id='legend']")
entries = [] if legend is None else list(zip([r.get("fill") for r in legend.iter(svg + "rect")], [t.text for t in legend.iter(svg + "text")]))
print(json.dumps({
    "tags": sorted({e.tag.split("}")[-1] for e in root.iter()}),
    "scripts": sum(1 for e in root.iter(svg + "script")),
    "height": root.get("height"),
    "texts": {t.get("id"): t.text for t in root.findall(svg + "text") if t.get("id")},
    "plain": [t.text for t in root.findall(svg + "text") if not t.get("id")],
    "total": 0 if frames is None else int(frames.get("total_samples")),
    "boxes": [] if frames is None else [box(g) for g in frames.findall(svg + "g")],
    "legend": entries,
}))
"#;

/// One box of the drawing.
#[derive(Debug, Clone, serde::Deserialize)]
pub struct Box {
    pub title: String,
    pub text: String,
    pub x: u64,
    pub w: u64,
    pub y: u64,
    pub fill: String,
}

/// What an XML parser found in a drawing.
#[derive(Debug, serde::Deserialize)]
pub struct Drawing {
    pub tags: Vec<String>,
    pub scripts: usize,
    pub height: String,
    pub texts: std::collections::BTreeMap<String, Option<String>>,
    pub plain: Vec<String>,
    pub total: u64,
    pub boxes: Vec<Box>,
    pub legend: Vec<(String, String)>,
}

impl Box {
    /// The tooltip's first line.
    pub fn caption(&self) -> &str {
        self.title.lines().next().unwrap_or_default()
    }
}

impl Drawing {
    pub fn read(svg: &[u8]) -> Self {
        let mut python = Command::new("python3")
            .args(["-c", READER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("these tests need a python3");
        python.stdin.take().unwrap().write_all(svg).unwrap();
        let output = python.wait_with_output().unwrap();
        assert!(output.status.success(), "not well-formed XML");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Boxes that say `caption`.
    pub fn named(&self, caption: &str) -> Vec<&Box> {
        self.boxes
            .iter()
            .filter(|b| b.caption() == caption)
            .collect()
    }

    /// Threads' boxes from left to right.
    pub fn roots(&self) -> Vec<&Box> {
        let mut rows: Vec<u64> = self.boxes.iter().map(|b| b.y).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut roots: Vec<&Box> = self
            .boxes
            .iter()
            .filter(|b| Some(&b.y) == rows.get(1))
            .collect();
        roots.sort_by_key(|b| b.x);
        roots
    }
}
