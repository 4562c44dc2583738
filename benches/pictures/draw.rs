//! Charts of results, as SVG: equal results give equal text.

use serde_json::Value;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 560.0;
const ROW: f64 = 26.0;
const HEAD: f64 = 58.0;
/// Readable on light and on dark pages.
const STYLE: &str = "text{font:13px sans-serif;fill:#24292f}.title{font-size:15px;font-weight:600}.small{font-size:12px;fill:#57606a}\
    .ours{fill:#1f6feb}.other{fill:#8c959f}.line{stroke:#1f6feb;fill:none;stroke-width:2}.axis{stroke:#8c959f}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}}";

struct Bar {
    label: String,
    value: f64,
    said: String,
    ours: bool,
}

/// Every chart with results, and the name of its file.
pub(crate) fn pictures(results: &Value) -> Vec<(&'static str, String)> {
    let all = [
        ("resize.svg", resize(results)),
        ("storm.svg", storm(results)),
        ("kill.svg", kill(results)),
        ("growth.svg", growth(results)),
        ("shrink.svg", shrink(results)),
        ("rest.svg", rest(results)),
    ];
    all.into_iter()
        .filter_map(|(name, picture)| Some((name, picture?)))
        .collect()
}

/// The tables of one part, in order.
fn tables<'a>(results: &'a Value, part: &str) -> impl DoubleEndedIterator<Item = &'a Value> {
    let all = results["tables"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(move |table| table["part"] == part)
}

/// The rows of the latest table of a part.
fn rows<'a>(results: &'a Value, part: &str) -> Option<&'a Vec<Value>> {
    tables(results, part).next_back()?["rows"].as_array()
}

/// The conditions under which a part was measured.
fn head(results: &Value, part: &str) -> String {
    let load = tables(results, part)
        .filter_map(|table| table["load"].as_f64())
        .fold(0.0, f64::max);
    let machine = &results["machine"];
    let kernel = machine["kernel"].as_str().unwrap_or_default();
    format!(
        "{} × {}, Linux {kernel}, load {load:.1}; {}",
        machine["cores"],
        machine["processor"].as_str().unwrap_or_default(),
        results["at"]
            .as_str()
            .unwrap_or_default()
            .split('T')
            .next()
            .unwrap_or_default()
    )
}

fn named<'a>(rows: &'a [Value], name: &str) -> Option<&'a Value> {
    rows.iter().find(|row| row["name"] == name)
}

fn resize(results: &Value) -> Option<String> {
    let rows = rows(results, "runtime")?;
    let ours = named(rows, "decision → all levels verified")?["p50_us"].as_f64()?;
    let others = rows
        .iter()
        .skip_while(|row| row["name"] != "file renamed → told at the socket")
        .skip(1);
    let mut bars = vec![Bar::beside("vscaled, all levels, read back", ours, None)];
    for row in others {
        bars.push(Bar::beside(row["name"].as_str()?, row["p50_us"].as_f64()?, Some(ours)));
    }
    let title = "Until the kernel holds new values of three containers (p50)";
    Some(Picture::bars(title, &head(results, "runtime"), &bars, Scale::Log))
}

fn storm(results: &Value) -> Option<String> {
    let mut bars = Vec::new();
    for table in tables(results, "crowd") {
        let (title, rows) = (table["title"].as_str()?, table["rows"].as_array()?);
        for kind in ["limits raised", "limits lowered"] {
            let row = named(rows, &format!("{kind}: first decision → last pod verified"))?;
            let pods = title.split(' ').next()?;
            let value = row["p50_us"].as_f64()?;
            bars.push(Bar {
                label: format!("{pods} pods, {kind}"),
                value,
                said: time(value),
                ours: true,
            });
        }
    }
    let title = "One recommendation for many pods: until the last of them holds it (p50)";
    (!bars.is_empty()).then(|| Picture::bars(title, &head(results, "crowd"), &bars, Scale::Linear))
}

fn kill(results: &Value) -> Option<String> {
    let rows = rows(results, "oom")?;
    let bars: Option<Vec<Bar>> = rows
        .iter()
        .map(|row| {
            let (label, value) = (row["name"].as_str()?, row["p50_us"].as_f64()?);
            Some(Bar {
                label: label.to_owned(),
                value,
                said: time(value),
                ours: !label.starts_with("reading"),
            })
        })
        .collect();
    let title = "From the kernel's stamp of an OOM kill until somebody knows of it (p50)";
    Some(Picture::bars(title, &head(results, "oom"), &bars?, Scale::Log))
}

fn growth(results: &Value) -> Option<String> {
    let rows = rows(results, "growth")?;
    let bars = rows.iter().filter(|row| row["guard"].is_boolean()).map(|row| {
        let rate = row["mib_per_second"]
            .as_u64()
            .map_or_else(|| "as fast as it can".to_owned(), |rate| format!("{rate} MiB/s"));
        let (killed, runs) = (
            row["killed"].as_f64().unwrap_or_default(),
            row["runs"].as_f64().unwrap_or(1.0),
        );
        let ours = row["guard"] == true;
        Bar {
            label: format!("{rate}, {}", if ours { "guarded" } else { "not guarded" }),
            value: killed / runs,
            said: format!("{killed} of {runs} killed"),
            ours,
        }
    });
    let bars: Vec<Bar> = bars.collect();
    let title = "A process that takes memory past its limit of 128 MiB: who is killed";
    Some(Picture::bars(title, &head(results, "growth"), &bars, Scale::Linear))
}

fn shrink(results: &Value) -> Option<String> {
    let rows = rows(results, "shrink")?;
    let bars = rows.iter().map(|row| Bar {
        label: row["way"].as_str().unwrap_or_default().to_owned(),
        value: row["below_most"].as_f64().unwrap_or_default(),
        said: format!(
            "{} of {} lowered, {} killed",
            row["below_most"], row["lowered"], row["killed"]
        ),
        ours: row["way"].as_str().is_some_and(|way| way.contains("vscaled")),
    });
    let bars: Vec<Bar> = bars.collect();
    let title = "Limits lowered to less than the process takes again at once";
    Some(Picture::bars(title, &head(results, "shrink"), &bars, Scale::Linear))
}

fn rest(results: &Value) -> Option<String> {
    let rows = rows(results, "rest")?;
    let points = |key: &str| -> Option<Vec<(f64, f64)>> {
        rows.iter()
            .map(|row| Some((row["containers"].as_f64()?, row[key].as_f64()?)))
            .collect()
    };
    let curves = [
        ("processor time, % of a core", points("core_percent")?),
        ("resident memory, MiB", points("resident_mib")?),
        ("descriptors", points("descriptors")?),
    ];
    let title = "At rest, by the number of containers (both axes logarithmic)";
    (rows.len() > 1).then(|| Picture::curves(title, &head(results, "rest"), &curves))
}

/// The exponent `e` of the best fit of `y = c * x^e`: least squares of the logarithms.
pub(crate) fn exponent(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0.ln()), mean(|point| point.1.ln()));
    let covariance: f64 = points.iter().map(|point| (point.0.ln() - x) * (point.1.ln() - y)).sum();
    covariance / points.iter().map(|point| (point.0.ln() - x).powi(2)).sum::<f64>()
}

/// Microseconds in the unit that fits.
fn time(micros: f64) -> String {
    match micros {
        ..1e3 => format!("{micros:.0} µs"),
        ..1e4 => format!("{:.1} ms", micros / 1e3),
        ..1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

impl Bar {
    /// The label of vscaled's own time, or of another one with its ratio.
    fn beside(label: &str, value: f64, ours: Option<f64>) -> Self {
        let times = ours.map(|ours| format!(", {:.0} times as long", value / ours));
        Self {
            label: label.to_owned(),
            value,
            said: time(value) + &times.unwrap_or_default(),
            ours: ours.is_none(),
        }
    }
}

#[derive(Clone, Copy)]
enum Scale {
    Linear,
    Log,
}

struct Picture(String);

impl Picture {
    fn begin(title: &str, conditions: &str, height: f64) -> Self {
        let mut picture = Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<style>{STYLE}</style>\n"
        ));
        picture.text(8.0, 20.0, "title", "start", title);
        picture.text(8.0, 40.0, "small", "start", conditions);
        picture
    }

    fn text(&mut self, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        self.0.push_str(&format!("{element}\n"));
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    fn bars(title: &str, conditions: &str, bars: &[Bar], scale: Scale) -> String {
        let values = || bars.iter().map(|bar| bar.value);
        let most = values().fold(f64::MIN_POSITIVE, f64::max);
        // A logarithmic bar begins at half of the power of ten below the smallest value.
        let begin = 10_f64.powf(values().fold(f64::MAX, f64::min).max(f64::MIN_POSITIVE).log10().floor());
        let mut picture = Self::begin(title, conditions, HEAD + ROW * bars.len() as f64 + 6.0);
        for (bar, row) in bars.iter().zip(0_u32..) {
            let y = HEAD + ROW * f64::from(row);
            let share = match scale {
                Scale::Linear => bar.value / most,
                Scale::Log => (bar.value * 2.0 / begin).ln() / (most * 2.0 / begin).ln(),
            };
            let width = ((RIGHT - LEFT) * share).max(1.0);
            let class = if bar.ours { "ours" } else { "other" };
            picture.text(LEFT - 8.0, y + 14.0, "", "end", &bar.label);
            picture.add(format_args!(
                "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"18\" rx=\"2\" class=\"{class}\"/>"
            ));
            picture.text(LEFT + width + 6.0, y + 14.0, "small", "start", &bar.said);
        }
        picture.end()
    }

    /// One plot for each curve, side by side, with the fitted line.
    fn curves(title: &str, conditions: &str, curves: &[(&str, Vec<(f64, f64)>)]) -> String {
        let (top, height) = (HEAD + 24.0, 150.0);
        let mut picture = Self::begin(title, conditions, top + height + 30.0);
        let each = WIDTH / curves.len() as f64;
        for ((name, points), column) in curves.iter().zip(0_u32..) {
            let (left, right) = (each * f64::from(column) + 44.0, each * f64::from(column + 1) - 44.0);
            let bounds = |of: fn(&(f64, f64)) -> f64| {
                let logs = || points.iter().map(|point| of(point).ln());
                (logs().fold(f64::MAX, f64::min), logs().fold(f64::MIN, f64::max))
            };
            let ((x0, x1), (y0, y1)) = (bounds(|point| point.0), bounds(|point| point.1));
            // Both axes have the same scale, so the visible slope is the exponent.
            let scale = ((right - left) / (x1 - x0)).min((height - 30.0) / (y1 - y0).max(0.1));
            let place = |(x, y): (f64, f64)| (left + (x - x0) * scale, top + height - 20.0 - (y - y0) * scale);
            let slope = exponent(points);
            picture.text(
                left - 36.0,
                top - 8.0,
                "small",
                "start",
                &format!("{name}: n^{slope:.2}"),
            );
            picture.add(format_args!(
                "<path class=\"axis\" fill=\"none\" d=\"M{left:.1} {top:.1}V{0:.1}H{right:.1}\"/>",
                top + height + 4.0
            ));
            let count = points.len() as f64;
            let middle = points.iter().fold((0.0, 0.0), |sum, point| {
                (sum.0 + point.0.ln() / count, sum.1 + point.1.ln() / count)
            });
            let [from, to] = [x0, x1].map(|x| place((x, middle.1 + slope * (x - middle.0))));
            picture.add(format_args!(
                "<path class=\"line\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>",
                from.0, from.1, to.0, to.1
            ));
            for point in points {
                let (x, y) = place((point.0.ln(), point.1.ln()));
                picture.add(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" class=\"ours\"/>"
                ));
                picture.text(x, top + height + 20.0, "small", "middle", &format!("{}", point.0));
                let value = if point.1 < 10.0 {
                    format!("{:.2}", point.1)
                } else {
                    format!("{:.0}", point.1)
                };
                picture.text(x + 8.0, y + 14.0, "small", "start", &value);
            }
        }
        picture.end()
    }
}
