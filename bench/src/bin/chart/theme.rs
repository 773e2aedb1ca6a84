//! What the charts have in common.

use crate::data::Machine;

/// The colours of one chart.
pub struct Theme {
    pub name: &'static str,
    /// A chart has a background of its own: the system chooses the chart, and a page need not follow the system.
    pub background: &'static str,
    pub text: &'static str,
    pub muted: &'static str,
    pub idgen: &'static str,
    pub other: &'static str,
}

pub const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        background: "#ffffff",
        text: "#1f2328",
        muted: "#59636e",
        idgen: "#0969da",
        other: "#afb8c1",
    },
    Theme {
        name: "dark",
        background: "#0d1117",
        text: "#f0f6fc",
        muted: "#9198a1",
        idgen: "#4493f8",
        other: "#4d5560",
    },
];

pub const WIDTH: f64 = 720.0;
const MARGIN: f64 = 16.0;

/// An image with a title, and a caption about the machine below it.
pub fn image(theme: &Theme, height: f64, title: &str, body: &str, how: &str, machine: &Machine) -> String {
    let Theme { background, text, muted, .. } = theme;
    let (left, wide, high) = (-MARGIN, WIDTH + 2.0 * MARGIN, height + 2.0 * MARGIN);
    let caption = format!("{how} idgen {}, PostgreSQL {}, {}.", machine.idgen, machine.postgresql(), machine.cpu);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{left} {left} {wide} {high}\" role=\"img\" \
         font-family=\"system-ui, sans-serif\" font-size=\"14\">\n\
         <title>{title}</title>\n\
         <rect x=\"{left}\" y=\"{left}\" width=\"{wide}\" height=\"{high}\" rx=\"6\" fill=\"{background}\"/>\n\
         <text x=\"0\" y=\"20\" fill=\"{text}\" font-size=\"16\" font-weight=\"600\">{title}: less is better</text>\n\
         {body}\
         <text x=\"0\" y=\"{}\" fill=\"{muted}\" font-size=\"12\">{}</text>\n</svg>\n",
        height - 8.0,
        escape(&caption)
    )
}

/// The name of a processor comes from the machine.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
