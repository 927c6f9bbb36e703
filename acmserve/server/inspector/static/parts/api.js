// Asks the server. The key stays in this tab (sessionStorage) and goes in a header, never in an address.

const KEY = "acmserve.key";
const SALT = "acmserve.salt";
const BASE = new URL("../v1/acm/", document.baseURI);

export class ApiError extends Error {
  constructor(status, error) {
    const remedy = error && error.remedy ? ` ${error.remedy}` : "";
    super(`${(error && error.message) || `The server answered ${status}.`}${remedy}`);
    this.status = status;
  }
}

export const credentials = () => ({
  key: sessionStorage.getItem(KEY) || "",
  salt: sessionStorage.getItem(SALT) || "",
});

export function setCredentials({ key, salt }) {
  for (const [name, value] of [[KEY, key], [SALT, salt]]) {
    if (value) sessionStorage.setItem(name, value);
    else sessionStorage.removeItem(name);
  }
}

function headers() {
  const { key, salt } = credentials();
  return { ...(key ? { Authorization: `Bearer ${key}` } : {}), ...(salt ? { "X-Cache-Salt": salt } : {}) };
}

export const sessionPath = (id, rest = "") => `sessions/${encodeURIComponent(id)}${rest}`;

async function refuse(response) {
  let error = null;
  try {
    const body = await response.json();
    error = typeof body.error === "string" ? { message: body.error } : body.error || { message: body.detail };
  } catch {
    // Somebody on the way answered, not the server.
  }
  if (response.status === 401) error = { message: "The server asks for an API key.", remedy: "Give one with “API key”." };
  throw new ApiError(response.status, error);
}

export async function get(path, signal) {
  const response = await fetch(new URL(path, BASE), { headers: headers(), signal });
  return response.ok ? response.json() : refuse(response);
}

// What a server may lack, or a session may not have: null instead of an error.
export async function find(path, signal) {
  try {
    return await get(path, signal);
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}

export async function post(path, body) {
  const sent = body === undefined ? {} : { body: JSON.stringify(body) };
  const response = await fetch(new URL(path, BASE), {
    method: "POST",
    headers: { ...headers(), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
    ...sent,
  });
  return response.ok ? response.json() : refuse(response);
}

export async function* events(path, signal) {
  const response = await fetch(new URL(path, BASE), { headers: headers(), signal });
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data) yield JSON.parse(data);
    }
  }
}

// Listens until the signal aborts. `hear` gets each event; a stream that ends is opened again, then all is read anew.
export async function listen(path, signal, hear, say) {
  for (let pause = 500; !signal.aborted; pause = Math.min(pause * 2, 15000)) {
    try {
      for await (const event of events(path, signal)) {
        if (event.type === "opened") {
          say("live", true);
          pause = 500;
        }
        hear(event);
        if (event.type === "deleted" && path !== "events") return say("deleted", false);
      }
    } catch (error) {
      if (signal.aborted) return undefined;
      if (error instanceof ApiError && [401, 403, 404].includes(error.status)) return say("not live", false);
    }
    if (signal.aborted) return undefined;
    say("reconnecting", false);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  return undefined;
}
