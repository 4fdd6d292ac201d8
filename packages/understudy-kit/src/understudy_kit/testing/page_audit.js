// What is wrong with the page that is shown, one line each. Contrast: WCAG 2.2, 1.4.3, level AA.
() => {
  const SMALLEST = 9, CONTRAST = 4.5;
  const found = new Set();
  const say = (kind, element, text) => found.add(`${kind}: ${text} <${element.tagName.toLowerCase()}>`);

  const parsed = (color) => {
    const numbers = (color.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    return numbers.length > 3 ? numbers : [...numbers, 1];
  };
  const over = (top, bottom) => {
    const alpha = top[3] + bottom[3] * (1 - top[3]);
    if (!alpha) return [0, 0, 0, 0];
    const mixed = [0, 1, 2].map((i) => (top[i] * top[3] + bottom[i] * bottom[3] * (1 - top[3])) / alpha);
    return [...mixed, alpha];
  };
  const behind = (element) => {
    let color = [0, 0, 0, 0];
    for (let at = element; at; at = at.parentElement) color = over(color, parsed(getComputedStyle(at).backgroundColor));
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    return over(color, dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const opacity = (element) => {
    let product = 1;
    for (let at = element; at; at = at.parentElement) product *= Number(getComputedStyle(at).opacity);
    return product;
  };

  if (document.documentElement.scrollWidth > window.innerWidth)
    found.add(`overflow: the page is ${document.documentElement.scrollWidth} px wide, the screen ${window.innerWidth}`);

  for (const box of document.querySelectorAll("main *"))
    if (box.scrollWidth > box.clientWidth + 1 && ["auto", "scroll", "hidden"].includes(getComputedStyle(box).overflowX) && !box.title && box.checkVisibility())
      say("scrolls", box, `${box.scrollWidth} px in ${box.clientWidth}: ${box.innerText.slice(0, 40)}`);

  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const text = node.textContent.trim(), element = node.parentElement;
    if (!text || ["STYLE", "SCRIPT", "title", "TITLE"].includes(element.tagName) || !element.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const style = getComputedStyle(element), shown = text.slice(0, 40);
    const drawn = element.ownerSVGElement;
    const scale = drawn ? element.getScreenCTM().d : 1;
    const size = parseFloat(style.fontSize) * Math.abs(scale || element.getScreenCTM().b || 1);
    if (size < SMALLEST) say("small", element, `${size.toFixed(1)} px: ${shown}`);
    const ink = parsed(drawn ? style.fill : style.color);
    const ground = behind(drawn || element);
    const contrast = ratio(over([...ink.slice(0, 3), ink[3] * opacity(element)], ground), ground);
    if (contrast < CONTRAST) say("contrast", element, `${contrast.toFixed(2)}: ${shown}`);
    if (drawn) {
      const frame = drawn.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2 || box.top < frame.top - 2)
        say("cut off", element, shown);
    }
  }
  for (const cell of document.querySelectorAll("td, th")) {
    const words = cell.innerText.trim().split(/\s+/).length, lines = cell.clientHeight / parseFloat(getComputedStyle(cell).lineHeight);
    if (words > 3 && lines > 4 && words / lines < 2) say("squeezed", cell, `${words} words on ${lines.toFixed(0)} lines: ${cell.innerText.slice(0, 40)}`);
  }
  for (const head of document.querySelectorAll("th:not([scope])")) say("scope", head, head.innerText);
  for (const image of document.querySelectorAll("img:not([alt]), img[alt='']")) say("alt", image, image.src.slice(0, 40));
  for (const image of document.querySelectorAll("svg:not([aria-label])")) say("label", image, image.id);
  for (const link of document.querySelectorAll("a[href^='#']"))
    if (!document.getElementById(link.getAttribute("href").slice(1))) say("link", link, link.getAttribute("href"));
  const names = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const name of new Set(names.filter((name, i) => names.indexOf(name) !== i))) found.add(`id twice: ${name}`);
  if (document.querySelectorAll("h2").length > 1 && !document.querySelector("nav")) found.add("nav: no links to the sections");
  return [...found];
}
