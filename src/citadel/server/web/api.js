// Client of the JSON API (docs/reference/http.md), with the token if the server needs one.

import { byId, show } from "./dom.js";

const TOKEN = "citadel-token";

export class ApiError extends Error {
  constructor(message, status, code, retryAfter) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

export const post = (path, body, signal) => call(path, { method: "POST", body: JSON.stringify(body), signal });
export const get = (path, signal) => call(path, { method: "GET", signal });

async function call(path, options) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = {
    ...(options.body && { "Content-Type": "application/json" }),
    ...(token && { Authorization: `Bearer ${token}` }),
  };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not respond. Is it still running?", 0, "network", 2);
  }
  if (!response.ok) throw await toError(response);
  return response.json();
}

async function toError(response) {
  const { status } = response;
  const detail = await response.json().then((body) => body.error, () => null);
  if (status === 401) show(byId("access"), true);
  const wait = Number(response.headers.get("Retry-After")) || (status === 503 ? 1 : 0);
  return new ApiError(detail?.message ?? `The server returned status ${status}.`, status, detail?.code ?? "", wait);
}

// The token is kept for this tab only and never put into a URL.
export function askForToken(then) {
  byId("access").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, byId("token").value.trim());
    byId("token").value = "";
    show(byId("access"), false);
    then();
  });
}

// Keeps only the newest call: an older one is cancelled, so that responses never arrive out of order.
export function newest(work) {
  let controller = null;
  const run = async (...parts) => {
    controller?.abort();
    const own = (controller = new AbortController());
    try {
      return await work(own.signal, ...parts);
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  };
  return Object.assign(run, { cancel: () => controller?.abort() });
}
