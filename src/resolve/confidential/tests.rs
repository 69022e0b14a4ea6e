use super::Confidential;

fn hidden() -> Confidential {
    let mut confidential = Confidential::new("");
    confidential
        .environments
        .insert("/home/u/conda/envs/secret".to_owned());
    confidential
}

#[test]
fn paths_keep_what_is_public_and_lose_what_is_above() {
    let mut hidden = hidden();
    for (path, wanted) in [
        (
            "/home/u/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py",
            "…/site-packages/torch/nn/modules/linear.py",
        ),
        (
            "/home/u/.pyenv/versions/3.12.1/lib/python3.12/queue.py",
            "…/lib/python3.12/queue.py",
        ),
        (
            "/usr/lib/python3/dist-packages/yaml/nodes.py",
            "…/dist-packages/yaml/nodes.py",
        ),
        (
            "<frozen importlib._bootstrap>",
            "<frozen importlib._bootstrap>",
        ),
    ] {
        assert_eq!(
            hidden.python_path(path),
            (wanted.to_owned(), true),
            "{path}"
        );
    }
    for path in [
        "/home/u/secret/train.py",
        "/home/u/lib/python3_secret/train.py",
        "secret.py",
        "<frozen secret>",
        "<secret>",
    ] {
        let (shown, is_public) = hidden.python_path(path);
        assert!(!is_public && !shown.contains("secret"), "{path}: {shown}");
        assert_eq!(shown.ends_with(".py"), path.ends_with(".py"), "{shown}");
    }
    for (path, wanted) in [
        (
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
        ),
        (
            "/home/u/conda/envs/secret/lib/libmkl_core.so",
            "…/lib/libmkl_core.so",
        ),
        (
            "/usr/local/lib/libpython3.11.so.1.0",
            "…/libpython3.11.so.1.0",
        ),
        ("/home/u/conda/envs/secret/bin/python3.11", "…/python3.11"),
        ("[vdso]", "[vdso]"),
    ] {
        assert_eq!(
            hidden.native_path(path),
            (wanted.to_owned(), true),
            "{path}"
        );
    }
    for path in [
        "/home/u/secret.cpython-311-x86_64-linux-gnu.so",
        "/usr/local/lib/libsecret.so",
        "[anon:secret]",
    ] {
        let (shown, is_public) = hidden.native_path(path);
        assert!(!is_public && !shown.contains("secret"), "{path}: {shown}");
    }
    assert_eq!(
        hidden.program("/home/secret/venv/bin/python3.11"),
        "…/python3.11"
    );
    assert!(!hidden.program("/home/secret/run").contains("secret"));
    assert!(hidden.program("secret: worker").starts_with("program_"));
}

#[test]
fn cells_keep_their_numbers() {
    let mut hidden = hidden();
    let (shown, _) = hidden.python_path("/tmp/ipykernel_811/In[12]-3405691582.py");
    let label = crate::model::text::notebook_cell(&shown);
    assert_eq!(label.as_deref(), Some("Jupyter cell [12]"), "{shown}");
    assert!(!shown.contains("3405691582"), "{shown}");
    let (shown, _) = hidden.python_path("<ipython-input-12-4ac0e3b1>");
    let label = crate::model::text::notebook_cell(&shown);
    assert_eq!(label.as_deref(), Some("cell 12"), "{shown}");
}

#[test]
fn names_keep_what_python_and_torch_give() {
    let mut hidden = hidden();
    for (name, start, end) in [
        ("Secret.forward", "class_", ".forward"),
        (
            "secret.<locals>.Linear.__init__",
            "f_",
            ".<locals>.Linear.__init__",
        ),
        ("<module>", "<module>", ""),
        (
            "Secret.torch_dynamo_resume_in_forward_at_23",
            "class_",
            ".torch_dynamo_resume_in_forward_at_23",
        ),
        (
            "torch_dynamo_resume_in_secret_at_7",
            "torch_dynamo_resume_in_f_",
            "_at_7",
        ),
    ] {
        let shown = hidden.qualified(name);
        assert!(
            shown.starts_with(start) && shown.ends_with(end),
            "{name}: {shown}"
        );
        assert!(!shown.to_lowercase().contains("secret"), "{shown}");
    }
    let class = hidden.class("Secret");
    assert_eq!(hidden.label("SecretBackward0"), format!("{class}Backward0"));
    assert_eq!(
        hidden.module_path("0.secret.12"),
        format!("0.{}.12", hidden.hash("m", "secret"))
    );
    assert_eq!(hidden.thread("thread", "pt_autograd_3"), "pt_autograd_3");
    assert!(
        hidden
            .thread("thread", "pt_nccl_secret")
            .starts_with("pt_nccl_")
    );
    assert!(hidden.thread("thread", "secret").starts_with("thread_"));
    assert_eq!(
        hidden.label("torch.cuda.synchronize()"),
        "torch.cuda.synchronize()"
    );
    assert!(!hidden.label("secret.wait (GPU to host)").contains("secret"));
}

#[test]
fn command_lines_keep_what_starts_them() {
    let words = "/home/secret/bin/python3 -u -m torch.distributed.run --nproc-per-node=2 /home/secret/train.py --secret 7";
    let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    let shown = hidden().command(&words);
    assert_eq!(
        shown[..4],
        ["…/python3", "-u", "-m", "torch.distributed.run"]
    );
    assert!(
        shown[5].starts_with("dir_") && shown[5].ends_with(".py"),
        "{shown:?}"
    );
    assert!(!shown.join(" ").contains("secret"), "{shown:?}");
    assert_eq!(shown.len(), words.len());
}

/// Sums by name stay what they are: with six digits, a few thousand names are enough for two that
/// have the same.
#[test]
fn different_names_never_become_one() {
    let mut hidden = hidden();
    let names: Vec<String> = (0..20_000)
        .map(|at| hidden.hash("f", &at.to_string()))
        .collect();
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert!(names.iter().any(|name| name.len() > "f_123456".len()));
}

#[test]
fn hashes_are_the_same_everywhere_and_go_by_the_key() {
    // printf '\0train' | sha256sum
    assert_eq!(Confidential::new("").hash("f", "train"), TRAIN);
    assert_ne!(Confidential::new("key").hash("f", "train"), TRAIN);
}

const TRAIN: &str = "f_c497ff";
