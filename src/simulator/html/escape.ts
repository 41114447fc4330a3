const entities: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  '"': "&quot;",
  "'": "&#39;",
};

/** For text and attributes of HTML and SVG. Control characters, which a page may not have, become U+FFFD. */
export function escapeHtml(text: string): string {
  return text
    .replace(/[&<>"']/g, (character) => entities[character]!)
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, "\ufffd");
}
