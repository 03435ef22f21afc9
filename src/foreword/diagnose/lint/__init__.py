"""Find prompts that will not keep their prefix, before they are sent: in Python source, in chat templates, in logs."""
