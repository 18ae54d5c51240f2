() => {
    // Colours: the visitor's choice if there is one, else the system's.
    const root = document.documentElement;
    const remembered = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
    const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window */ } };
    const dark = () => document.body.classList.contains("dark");
    const show = (isDark) => {
        document.body.classList.toggle("dark", isDark);
        root.style.colorScheme = isDark ? "dark" : "light";
    };
    const chosen = remembered("studio-colours");
    show(chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);

    const area = (id) => document.querySelector(`#${id} textarea`);

    window.studio = {
        switchColours() {
            show(!dark());
            remember("studio-colours", dark() ? "dark" : "light");
        },
        setLanguage(language, kept) {
            root.lang = language === "zh" ? "zh-CN" : "en";
            // A cookie, so that the page already arrives in this language the next time.
            if (kept) document.cookie = `studio-language=${language}; Path=/; Max-Age=31536000; SameSite=Lax`;
            return language;
        },
        // The text of a box with something put in at the cursor, or around what is selected.
        insert(id, text, before, after) {
            const box = area(id);
            const start = box ? box.selectionStart : text.length, end = box ? box.selectionEnd : text.length;
            const changed = text.slice(0, start) + before + text.slice(start, end) + after + text.slice(end);
            const cursor = end + before.length + (start === end ? 0 : after.length);
            if (box) setTimeout(() => { box.focus(); box.setSelectionRange(cursor, cursor); }, 60);
            return changed;
        },
    };

    // Ctrl+Enter (or Command+Enter) in any box of a tab presses that tab's main button.
    document.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
        const panel = event.target.closest?.('[role="tabpanel"]');
        const button = panel?.querySelector("button.main-button");
        if (button && !button.disabled) { event.preventDefault(); button.click(); }
    });

    // What changes by itself is read out.
    const announce = () => document.querySelectorAll(".prose.announced:not([role])").forEach((node) => {
        node.setAttribute("role", "status");
        node.setAttribute("aria-live", "polite");
    });

    // Gradio's own messages, in the visitor's language and without its file types and codes.
    const SENTENCES = "@SENTENCES@";
    const ABOUT = [
        ["toast_file", /file type|not allowed/i],
        ["toast_size", /exceed|too large|size|413/i],
        ["toast_connection", /connect|network|fetch|server|连接/i],
    ];
    const translate = () => document.querySelectorAll(".toast-message-text:not([data-said])").forEach((node) => {
        const language = root.lang.startsWith("zh") ? "zh" : "en";
        const about = ABOUT.find(([, pattern]) => pattern.test(node.textContent))?.[0] ?? "toast_other";
        node.dataset.said = about;
        node.textContent = SENTENCES[about][language];
        const title = node.closest(".toast-body")?.querySelector(".toast-title")?.firstChild;
        if (title) title.textContent = SENTENCES.toast_title[language];
    });

    const look = () => { announce(); translate(); };
    look();
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true });
}
