// Resources of the viewer: JSON from its server, or from script files beside an exported page.
"use strict";

const setup = JSON.parse(document.getElementById("setup").textContent);
const isExport = setup.listed !== null;
const expected = new Map(); // name -> function that takes the value

// Called by the script files of an export.
function receive(name, value) {
  const take = expected.get(name);
  expected.delete(name);
  if (take) take(value);
}

async function loadJson(name) {
  if (isExport) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      expected.set(name, resolve);
      script.src = `${name}.js`;
      script.onload = () => script.remove();
      script.onerror = () => reject(new Error(`${name}.js is not beside this page`));
      document.head.append(script);
    });
  }
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

// Text of the error behind an image that did not load.
async function errorOf(name) {
  if (isExport) return `${name} is not beside this page`;
  try {
    const answer = await fetch(name);
    return answer.ok ? `${name} is no readable image` : answer.text();
  } catch (error) {
    return "the server is gone";
  }
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function digits(value) {
  if (value === null || value === undefined) return "none";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(5)));
}
