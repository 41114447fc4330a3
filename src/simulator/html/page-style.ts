const light = ["#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#b91c1c"];
const dark = ["#7aa7ff", "#f5a742", "#3ccf95", "#f779b4", "#b294ff", "#4ad0e8", "#a6d84a", "#ff7b72"];

const colors = (palette: readonly string[]): string =>
  palette.map((color, index) => `.c${index}{stroke:${color}}`).join("");

export const pageStyle = `
:root{color-scheme:light dark;--paper:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d8dee4;--grid:#eaeef2}
body{margin:0 auto;max-width:1240px;padding:24px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0}
h2{font-size:17px;margin:32px 0 8px}
p{margin:4px 0;color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 14px 3px 0;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left;font-weight:400;color:var(--soft)}
td.text+td.text{text-align:left;white-space:normal}
thead th{border-bottom:1px solid var(--rule);font-weight:600}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(440px,1fr));gap:20px 24px}
figure{margin:0;min-width:0}
figcaption{font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:0 14px;min-height:22px;font-size:13px;color:var(--soft)}
.key{width:20px;height:8px;margin-right:5px}
.chart{width:100%;height:auto;display:block}
.chart text{font-size:11px;fill:var(--soft)}
.chart .x,.empty{text-anchor:middle}
.chart .y{text-anchor:end;dominant-baseline:middle}
.grid{stroke:var(--grid)}
.tick{stroke:var(--rule)}
.line{fill:none;stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
.dashed{stroke-dasharray:5 3}
.thin{stroke-width:.8;opacity:.55}
.mark{fill:none;stroke:var(--soft);stroke-width:1.2;stroke-dasharray:2 3}
${colors(light)}
@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e6e8ea;--soft:#9aa4ae;--rule:#3a424b;--grid:#262c33}${colors(dark)}}
@media (max-width:520px){.charts{grid-template-columns:1fr}}
`;
